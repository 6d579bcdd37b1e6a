"""Loads each version of a LoRA adapter under a name of its own.

If an adapter were replaced under the same name, an engine would use the prefix cache of the old
adapter, and would read its files again at every request. With a new name for each version, the
engine does not pause. A request in flight uses the adapter that it named until the request ends. A
name never stands for other weights. When no request can name an old adapter any more, it is
unloaded and its folder may be removed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.policy.client.probe import UNREACHABLE
from holdfast.policy.dialects.dialect import OUR_ADAPTERS
from holdfast.weights.replica import UPDATE_SECONDS, EngineKind, Replica
from holdfast.weights.strategies.strategy import Offer, WeightStrategy
from holdfast.weights.version import WeightFolder, WeightsNotTaken

_RUNTIME = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
_LOAD = {
    EngineKind.VLLM: "/v1/load_lora_adapter",
    EngineKind.SGLANG: "/load_lora_adapter",
}
_UNLOAD = {
    EngineKind.VLLM: "/v1/unload_lora_adapter",
    EngineKind.SGLANG: "/unload_lora_adapter",
}


class AdapterStrategy(WeightStrategy):
    """Loads LoRA adapters. `rank` is the rank of the trained adapter, or None if no adapter is
    trained."""

    name = "adapter"
    stands_still = False

    def __init__(self, *, rank: int | None):
        self._rank = rank
        self._loaded: dict[Replica, dict[str, str]] = {}
        """For each replica, the names of the adapters that Holdfast loaded, each with the name of
        its version."""

    async def offers(self, replica: Replica) -> Offer:
        if self._rank is None:
            return Offer(False, "no LoRA adapter is trained (--lora-rank)")
        route = _LOAD.get(replica.kind)
        if route is None:
            return Offer(False, f"{replica.name} takes no adapters")
        if not await replica.has_route(route):
            return Offer(
                False,
                f"{replica.name} loads no adapters at run time: start it with {_RUNTIME} and "
                f"--enable-lora --max-lora-rank {self._rank}",
            )
        return Offer(True, "it loads adapters by name")

    async def start(self, replicas: Sequence[Replica]) -> None:
        """Finds adapters that an earlier trainer process loaded, so that they are unloaded."""
        for replica in replicas:
            self._loaded[replica] = dict.fromkeys(await _listed(replica), "")

    async def send_one(self, version: WeightFolder, replica: Replica) -> None:
        if version.adapter is None:
            raise WeightsNotTaken(f"version {version.name} has no adapter")
        name, path = adapter_name(version), version.adapter.resolve()
        body = {"lora_name": name, "lora_path": str(path)}
        try:
            await replica.post(_LOAD[replica.kind], body, seconds=UPDATE_SECONDS)
        except WeightsNotTaken as error:
            # Only the engine knows its adapters, because it may have restarted in the meantime.
            if "already" not in str(error):
                raise WeightsNotTaken(f"{error}{_remedy(str(error), path)}") from error
        self._loaded.setdefault(replica, {})[name] = version.name

    async def has(self, version: WeightFolder, replica: Replica) -> bool:
        """Returns whether the engine lists the adapter of the version. An engine that was restarted
        lists no adapter."""
        listed = await _listed(replica)
        self._loaded[replica] = {
            name: self._loaded.get(replica, {}).get(name, "") for name in listed
        }
        return adapter_name(version) in listed

    def model_of(self, version: WeightFolder, replica: Replica) -> str:
        return adapter_name(version)

    def switch(self, version: WeightFolder, replica: Replica) -> None:
        replica.endpoint.adapter = adapter_name(version)

    async def tidy(self, replica: Replica) -> None:
        loaded, endpoint = self._loaded.get(replica, {}), replica.endpoint
        listed = set(await _listed(replica))
        for name in tuple(loaded):
            if name not in listed:
                del loaded[name]
            elif name != endpoint.adapter and not endpoint.requested[name]:
                await replica.post(_UNLOAD[replica.kind], {"lora_name": name})
                del loaded[name]

    def in_use(self) -> set[str]:
        return {version for loaded in self._loaded.values() for version in loaded.values()}


def adapter_name(version: WeightFolder) -> str:
    """Returns the name of the version's adapter. A part of the digest is in it, because two runs
    may each have a version `step-3`."""
    return f"{OUR_ADAPTERS}{version.name}-{version.digest[:8]}"


async def _listed(replica: Replica) -> list[str]:
    """Returns the names of those of Holdfast's adapters that the engine has loaded."""
    try:
        return [model.id for model in await replica.endpoint.models() if model.is_ours]
    except (*UNREACHABLE, msgspec.ValidationError):
        return []


def _remedy(error: str, path: Path) -> str:
    """Returns advice on how to make an engine load the adapter in `path`, given its error; "" for
    an unknown error."""
    config = json.loads((path / "adapter_config.json").read_text())
    if "rank" in error.lower():
        return f"; start it with --max-lora-rank {config.get('r')}"
    if "no adapter found" in error.lower() or "no such file" in error.lower():
        return f"; it does not see {path}: give --out a folder that both machines see"
    if "lora" in error.lower() and "enable" in error.lower():
        return "; start it with --enable-lora"
    return ""
