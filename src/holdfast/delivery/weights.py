"""A model of transformers as a version of the weights, on its way into the engine.

The name and the digest of a version are durable before an engine gets it, as everywhere.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.journal.journal import Consumer, Journal
from holdfast.records.errors import UsageError
from holdfast.training.run.loop import in_thread
from holdfast.training.run.weights import WeightFolder, choose_name, digest_of, write_aside


class ModelWeights(Struct, frozen=True):
    """The weights of a model as they were when they were read."""

    model: Any
    tensors: dict[str, Any]
    digest: str


async def read_weights(model: Any, tensors: Mapping[str, Any] | None = None) -> ModelWeights:
    """The weights of the model as it is now. `tensors`: the trainer's tensors, used instead of the
    model's."""
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
    """As a Hugging Face folder with a name that is durable."""
    digest = weights.digest
    name = await choose_name(journal, consumer, step, digest)

    def write(folder: Path) -> None:
        weights.model.save_pretrained(folder, state_dict=weights.tensors, safe_serialization=True)
        tokenizer.save_pretrained(folder)

    path = await in_thread(write_aside, parent, name, write)
    await journal.publish_version(consumer.run, name, step=step, digest=digest, consumer=consumer)
    return WeightFolder(name, path, digest)
