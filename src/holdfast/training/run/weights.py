"""A version of the weights: a folder that engines load, and its way into them.

A version's name never stands for other bytes: it is durable in the journal, with the digest of the
weights, before an engine gets it, and is in force when every engine says that it has it.
"""

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from holdfast import crashpoint
from holdfast.journal.journal import Consumer, Journal
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.records.errors import HoldfastError
from holdfast.training.model.network import Network, no_progress_bars

KEEP_VERSIONS = 2
_ASIDE = ".partial-"
_TOKENIZER = ("*token*", "*.jinja", "vocab*", "merges*", "special*", "generation_config.json")
UPDATE_SECONDS = 600.0
"""For one update: a large model takes minutes to read."""
RETRY_SECONDS = 0.5


class WeightsNotTaken(HoldfastError):
    """An engine did not take a version of the weights."""


class WeightFolder(Struct, frozen=True):
    """A version on disk."""

    name: str
    path: Path
    digest: str


def digest_of(tensors: "dict[str, Tensor]") -> str:
    """Of names, shapes, types and bytes: the same for the same weights."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


async def choose_name(journal: Journal, consumer: Consumer, step: int, digest: str) -> str:
    """`step-N`; or, where that stands for other bytes already, `step-N.2`, and so on."""
    known = {version.name: version.digest for version in await journal.versions(consumer.run)}
    name, again = f"step-{step}", 1
    while known.get(name, digest) != digest:
        again += 1
        name = f"step-{step}.{again}"
    return name


def write_folder(parent: Path, name: str, network: Network) -> Path:
    """A Hugging Face folder of the network as it is now, a LoRA adapter merged into it. Written
    aside and renamed; one that is there already is written anew."""
    parent.mkdir(parents=True, exist_ok=True)
    aside, final = parent / f"{_ASIDE}{name}", parent / name
    shutil.rmtree(aside, ignore_errors=True)
    _save(network, aside)
    for pattern in _TOKENIZER:
        for file in network.folder.glob(pattern):
            if not (aside / file.name).exists():
                shutil.copy(file, aside / file.name)
    crashpoint.reach("weights.written")
    shutil.rmtree(final, ignore_errors=True)
    os.rename(aside, final)
    return final


@no_progress_bars()
def _save(network: Network, folder: Path) -> None:
    if network.lora is None:
        network.module.save_pretrained(folder, safe_serialization=True)
        return
    plain: Any = network.module.get_base_model()
    plain.save_pretrained(folder, state_dict=merged_state(network), safe_serialization=True)


@torch.no_grad()
def merged_state(network: Network) -> dict[str, Tensor]:
    """The weights under the names of the plain model, the adapter added to copies of them: taken
    out again (peft's unmerge), it would leave its rounding in the model at every step."""
    plain: Any = network.module.get_base_model()
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
    """All versions but these."""
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)


async def push(
    policy: EnginePolicy,
    version: WeightFolder,
    *,
    patience: float,
    api_key: str | None = None,
) -> None:
    """Every engine loads the version, or `WeightsNotTaken`. Then the policy knows it. An engine
    that is down is waited for, up to `patience` seconds."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=UPDATE_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        await asyncio.gather(
            *(_update(session, each, version, patience=patience) for each in policy.endpoints)
        )
    policy.acknowledge(version.name)


async def _update(
    session: aiohttp.ClientSession, endpoint: Endpoint, version: WeightFolder, *, patience: float
) -> None:
    url, path = endpoint.url, str(version.path.resolve())
    if endpoint.dialect.kind is Kind.SGLANG:
        body = {"model_path": path, "weight_version": version.name}
    else:
        body = {"path": path, "version": version.name}
    until = time.monotonic() + patience
    while True:
        try:
            async with session.post(f"{url}/update_weights_from_disk", json=body) as response:
                text = await response.text()
            break
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= until:
                raise WeightsNotTaken(
                    f"{url} did not take the weights {version.name}: {error!r}"
                ) from error
        await asyncio.sleep(RETRY_SECONDS)
    if response.status != 200 or not _is_success(text):
        raise WeightsNotTaken(
            f"{url} did not take the weights {version.name}: {response.status} {text[:300]}"
        )


def _is_success(text: str) -> bool:
    """SGLang answers 200 to some updates that failed."""
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return True
    return not isinstance(answer, dict) or answer.get("success", True) is True
