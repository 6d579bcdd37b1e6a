"""Writes a model of transformers as a version of the weights for the engine.

As everywhere, the name and the digest of a version are durable before an engine gets it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.records.errors import UsageError
from holdfast.training.run.loop import in_thread
from holdfast.training.run.weights import WeightFolder, choose_name, digest_of, write_aside


class ModelWeights(Struct, frozen=True):
    """The weights of a model at the time when they were read."""

    model: Any
    tensors: dict[str, Any]
    digest: str


async def read_weights(model: Any, tensors: Mapping[str, Any] | None = None) -> ModelWeights:
    """Returns the current weights of the model. A tensor in `tensors` replaces the model's tensor
    with the same name."""
    if hasattr(model, "peft_config"):
        raise UsageError(
            "the trainer's model has an adapter (peft), which cannot be written as a whole model "
            "here: train the whole model, or give the engines their weights yourself (weights=…)"
        )
    state = {**model.state_dict(), **(tensors or {})}
    return ModelWeights(model, state, await in_thread(digest_of, state))


async def name_weights(
    weights: ModelWeights,
    tokenizer: Any,
    *,
    journal: Journal,
    consumer: Consumer,
    step: int,
    parent: Path,
) -> WeightFolder:
    """Writes the weights as a Hugging Face folder, and publishes the version under a durable
    name."""
    digest = weights.digest
    name = await choose_name(journal, consumer, step, digest)

    def write(folder: Path) -> None:
        weights.model.save_pretrained(folder, state_dict=weights.tensors, safe_serialization=True)
        tokenizer.save_pretrained(folder)

    path = await in_thread(write_aside, parent, name, write)
    await journal.publish_version(consumer.run, name, step=step, digest=digest, consumer=consumer)
    return WeightFolder(name, path, digest)
