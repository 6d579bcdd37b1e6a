"""Writes a version of the weights as a folder, and chooses the way in which engines get it.

The name of a version never stands for other weights: before an engine gets the version, the journal
durably holds its name with the digest of the weights. A version is in force when every engine that
gets calls has it.
"""

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast import crashpoint
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.encoding.file_name import file_name
from holdfast.training.model.network import Network, digest_of
from holdfast.training.model.plain import no_progress_bars
from holdfast.training.settings import TrainingSettings
from holdfast.weights.carrier import Carrier, this_device
from holdfast.weights.probe import CANDIDATES, chosen_scores, probe_ids
from holdfast.weights.strategies.adapter import AdapterStrategy
from holdfast.weights.strategies.disk import DiskStrategy, check_stage, sync_folder, sync_path
from holdfast.weights.strategies.object_store import ObjectStoreStrategy
from holdfast.weights.strategies.sglang_transfer import SglangTransfer
from holdfast.weights.strategies.strategy import AUTO, WeightStrategy
from holdfast.weights.strategies.vllm_transfer import (
    VllmOwnTransfer,
    VllmSharedMemory,
    VllmTransfer,
)
from holdfast.weights.sync import Restart, WeightSync
from holdfast.weights.version import TokenScores, WeightFolder, WeightsNotTaken

__all__ = [
    "Scores",
    "WeightFolder",
    "WeightsNotTaken",
    "choose_name",
    "connect_sync",
    "digest_of",
    "merged_state",
    "open_sync",
    "remove_old",
    "score",
    "write_aside",
    "write_folder",
]
_ASIDE = ".partial-"
ADAPTER = "adapter"
"""The name of the folder, inside a version's folder, that holds the version as a LoRA adapter."""
_TOKENIZER = ("*token*", "*.jinja", "vocab*", "merges*", "special*", "generation_config.json")


async def choose_name(journal: Journal, consumer: Consumer, step: int, digest: str) -> str:
    """Returns the name `step-N`. If that name already stands for other weights, returns `step-N.2`,
    or the next free number."""
    name, again = f"step-{step}", 1
    while any(v.digest != digest for v in await journal.versions(consumer.run, name=name)):
        again += 1
        name = f"step-{step}.{again}"
    return name


def write_folder(parent: Path, name: str, network: Network) -> Path:
    """Writes the present weights of the network as a Hugging Face folder. A LoRA adapter is merged
    into them."""
    return write_aside(parent, name, partial(_write_files, network))


def write_aside(parent: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Creates a folder completely or not at all. `write` fills a temporary folder, which is then
    renamed and replaces an existing folder of that name."""
    parent.mkdir(parents=True, exist_ok=True)
    aside, final = parent / f"{_ASIDE}{name}", parent / name
    shutil.rmtree(aside, ignore_errors=True)
    with no_progress_bars():
        write(aside)
    sync_folder(aside)
    crashpoint.reach("weights.written")
    shutil.rmtree(final, ignore_errors=True)
    os.rename(aside, final)
    sync_path(parent)
    return final


def _write_files(network: Network, folder: Path) -> None:
    whole = network.whole
    if network.lora is None:
        whole.save_pretrained(folder, safe_serialization=True)
    else:
        plain: Any = whole.get_base_model()
        plain.save_pretrained(folder, state_dict=merged_state(network), safe_serialization=True)
        whole.save_pretrained(folder / ADAPTER, safe_serialization=True)
        sync_folder(folder / ADAPTER)
    for pattern in _TOKENIZER:
        for file in network.folder.glob(pattern):
            if not (folder / file.name).exists():
                shutil.copy(file, folder / file.name)


@torch.no_grad()
def merged_state(network: Network) -> dict[str, Tensor]:
    """Returns the weights under the names of the plain model. The adapter is added to copies of the
    weights, because merging in place and unmerging (as peft does) would leave rounding errors in
    the model at every step."""
    plain: Any = network.whole.get_base_model()
    state = {
        name.replace(".base_layer", ""): tensor
        for name, tensor in plain.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in plain.named_modules():
        for adapter in getattr(layer, "lora_A", {}):
            weight = state[f"{name}.weight"]
            state[f"{name}.weight"] = weight + layer.get_delta_weight(adapter).to(weight.dtype)
    return state


def remove_old(parent: Path, keep: Sequence[str]) -> None:
    """Removes all versions except those named in `keep`."""
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)


class Scores:
    """Computes the scores of one version after the other. Scores are the logprobs by which a check
    recognizes an engine with these weights."""

    def __init__(self) -> None:
        self._before: list[float] = []

    def of(self, network: Network) -> TokenScores:
        """Returns the scores of the present weights, together with the logprobs of the previous
        call's weights."""
        ids = probe_ids(network.vocabulary)
        now = network.exact_logprobs(ids, CANDIDATES)
        dtype = str(next(network.module.parameters()).dtype).removeprefix("torch.")
        scores = chosen_scores(ids, now, self._before, dtype)
        self._before = now
        return scores


def score(network: Network) -> TokenScores:
    """Returns the scores of the present weights, without a previous version."""
    return Scores().of(network)


@asynccontextmanager
async def open_sync(
    policy: EnginePolicy,
    settings: TrainingSettings,
    *,
    model: Path,
    run: str,
    restart: Restart | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[WeightSync]:
    """Calls `connect_sync` with the settings of a training. Closes the sync at the end of the
    block."""
    stage = None
    if settings.weight_dir is not None:
        # Each run has its own folder, which is removed at the end.
        stage = settings.weight_dir / f"holdfast-{file_name(run)}"
        check_stage(stage, model)
    sync = await connect_sync(
        policy,
        model=model,
        run=run,
        device=settings.device,
        lora_rank=settings.lora.rank if settings.lora else None,
        wanted=settings.weight_sync,
        stage=stage,
        restart=restart,
        report=report,
    )
    try:
        yield sync
    finally:
        await sync.aclose()


async def connect_sync(
    policy: EnginePolicy,
    *,
    model: Path,
    run: str = "run",
    device: str = "cpu",
    lora_rank: int | None = None,
    wanted: str = AUTO,
    stage: Path | None = None,
    restart: Restart | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> WeightSync:
    """Chooses how weights get into the engines of a policy that was already checked. Returns the
    sync, whose `publish` sends a version. `model` is the folder of the trained model, and `device`
    is the device of the trainer. Raises `UsageError` if the engines offer no way."""
    config = json.loads((model / "config.json").read_text())
    trainer = this_device(device)
    is_tied = bool(config.get("tie_word_embeddings"))
    strategies: list[WeightStrategy] = [
        AdapterStrategy(rank=lora_rank),
        VllmSharedMemory(trainer=trainer),
        VllmTransfer(Carrier.NCCL, trainer=trainer),
        VllmOwnTransfer(trainer=trainer),
        SglangTransfer(Carrier.NCCL, trainer=trainer),
        VllmTransfer(Carrier.GLOO, trainer=trainer),
        SglangTransfer(Carrier.GLOO, trainer=trainer),
        DiskStrategy(stage=stage, is_tied=is_tied),
        ObjectStoreStrategy(run=file_name(run), is_tied=is_tied),
    ]
    sync = WeightSync(policy, strategies, wanted=wanted, restart=restart, report=report)
    await sync.start()
    return sync
