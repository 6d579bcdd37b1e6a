"""The distributed update of the fake SGLang: a real collective, and SGLang's rules around it.

Groups are made by the helper of `torch.distributed` that SGLang uses, under the same names.
Tensors are loaded as they come: what fails half-way leaves a model that is of two versions, and
serves it. An update that was begun and not ended blocks the next.
"""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from holdfast.engine_api.errors import EngineRequestRejected
from support.weights.fake_engine.transfer import content_of_tensors
from support.weights.fake_engine.weights import LoadedWeights

if TYPE_CHECKING:
    from torch import Tensor

JOIN_SECONDS = 60.0
"""SGLang itself waits for 30 minutes."""


class SglangOutcome(NamedTuple):
    success: bool
    message: str


class SglangGroupName(Struct):
    group_name: str = "weight_update_group"


class SglangGroupInit(SglangGroupName, kw_only=True):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    backend: str = "nccl"


class SglangGroupUpdate(SglangGroupName, kw_only=True):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    load_format: str | None = None


class SglangGroups:
    """One worker's side. What a real one receives from GPU to GPU goes over gloo here."""

    def __init__(self, weights: LoadedWeights):
        self._weights = weights
        self._groups: dict[str, Any] = {}
        self._tensors: dict[str, Tensor] = {}

    async def init(self, body: SglangGroupInit) -> SglangOutcome:
        try:
            self._weights.reach("init")
            self._groups[body.group_name] = await asyncio.to_thread(_join, body)
        except (EngineRequestRejected, OSError, RuntimeError) as error:
            return SglangOutcome(False, f"Failed to initialize custom process group: {error}.")
        return SglangOutcome(True, "Succeeded to initialize custom process group.")

    def destroy(self, name: str) -> SglangOutcome:
        import torch.distributed as dist

        if name not in self._groups:
            return SglangOutcome(False, "The group to be destroyed does not exist.")
        dist.destroy_process_group(self._groups.pop(name))
        return SglangOutcome(True, "Succeeded to destroy custom process group.")

    def begin(self) -> SglangOutcome:
        if self._weights.is_updating:
            return SglangOutcome(False, "a weight update session is already open")
        self._weights.is_updating = True
        self._weights.reach("start")
        return SglangOutcome(True, "Success.")

    def end(self) -> SglangOutcome:
        if not self._weights.is_updating:
            return SglangOutcome(False, "end_weight_update without begin_weight_update")
        self._weights.reach("finish")
        self._weights.is_updating = False
        return SglangOutcome(True, "Success.")

    async def update(self, body: SglangGroupUpdate) -> SglangOutcome:
        if self._weights.options.sessions and not self._weights.is_updating:
            return SglangOutcome(
                False,
                "update_weights_from_distributed requires an open session: begin_weight_update",
            )
        try:
            self._weights.reach("update")
            self._tensors |= await asyncio.to_thread(self._receive, body)
        except (EngineRequestRejected, OSError, RuntimeError) as error:
            self._weights.set(f"a part of {body.names} over {self._weights.content}")
            return SglangOutcome(
                False,
                f"Failed to update parameter online: {error}. The full weights of the ModelRunner "
                "are partially updated. Please discard the whole weights.",
            )
        self._weights.set(content_of_tensors(self._tensors))
        return SglangOutcome(True, "Succeeded to update parameter online.")

    def _receive(self, body: SglangGroupUpdate) -> "dict[str, Tensor]":
        import torch
        import torch.distributed as dist

        group = self._groups.get(body.group_name)
        if group is None:
            raise RuntimeError("Please call `init_weights_update_group` first.")
        result = {}
        for name, dtype, shape in zip(body.names, body.dtypes, body.shapes, strict=True):
            result[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            dist.broadcast(result[name], src=0, group=group)
        return result


def _join(body: SglangGroupInit) -> Any:
    import torch.distributed as dist

    c10d: Any = dist.distributed_c10d
    timeout = timedelta(seconds=JOIN_SECONDS)
    address = f"tcp://{body.master_address}:{body.master_port}"
    result = c10d.rendezvous(address, body.rank_offset, body.world_size, timeout=timeout)
    store, rank, world = next(result)
    store.set_timeout(timeout)
    named = c10d.PrefixStore(body.group_name, store)
    group, _ = c10d._new_process_group_helper(  # as SGLang does
        world, rank, [], c10d.Backend("gloo"), named, body.group_name, timeout=timeout
    )
    c10d._world.pg_group_ranks[group] = {number: number for number in range(world)}
    return group
