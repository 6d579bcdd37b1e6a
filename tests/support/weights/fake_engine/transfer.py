"""The weight transfer of the fake vLLM: a real collective, and vLLM's rules around it.

With the backend "holdfast", as with that of `holdfast.weights.vllm_worker`, nothing changes before
the end. With "nccl", as with vLLM's own, weights are loaded as they come: an update that fails
half-way leaves a model whose next request ends the server.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from support.weights.fake_engine.weights import LoadedWeights, content_of, worker_failed

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.weights.collective import BroadcastGroup, TensorMeta

STAGED = "holdfast"
_ENGINES = {STAGED: "HoldfastWeightTransferEngine", "nccl": "NCCLWeightTransferEngine"}


class StagedInit(Struct):
    """Of the backend of `vllm_worker`."""

    carrier: str
    master_address: str = ""
    master_port: int = 0
    world_size: int = 0
    rank_offset: int = 0
    handle: dict[str, object] | None = None


class NcclInit(Struct):
    """Of vLLM's own backend."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    packed: bool = False
    packed_buffer_size_bytes: int = 1 << 30
    packed_num_buffers: int = 2


class FakeUpdateInfo(Struct):
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    handle: dict[str, object] | None = None

    def metas(self) -> "list[TensorMeta]":
        """Raises `ValueError` where the lists differ in length."""
        from holdfast.weights.collective import TensorMeta

        described = zip(self.names, self.dtype_names, self.shapes, strict=True)
        return [TensorMeta(name, dtype, tuple(shape)) for name, dtype, shape in described]


class FakeTransfer:
    """One worker's side. What a real one receives from GPU to GPU goes over gloo here."""

    def __init__(self, weights: LoadedWeights):
        self._weights = weights
        self._group: BroadcastGroup | None = None
        self._wire: StagedInit | NcclInit | None = None
        self._received: dict[str, Tensor] = {}

    @property
    def _backend(self) -> str:
        return self._weights.options.transfer

    async def init(self, info: dict[str, object]) -> None:
        if not self._backend:
            raise worker_failed(
                "Weight transfer not configured. Please set weight_transfer_config to enable "
                "weight transfer."
            )
        try:
            parsed: StagedInit | NcclInit = (
                msgspec.convert(info, StagedInit)
                if self._backend == STAGED
                else msgspec.convert(info, NcclInit)
            )
        except msgspec.ValidationError as error:
            name = _ENGINES.get(self._backend, self._backend)
            raise worker_failed(f"Invalid init_info for {name}: {error}") from error
        self._weights.reach("init")
        try:
            await asyncio.to_thread(self._join, parsed)
        except (OSError, RuntimeError) as error:
            raise worker_failed(str(error).splitlines()[0]) from error

    def _join(self, info: StagedInit | NcclInit) -> None:
        from holdfast.weights.collective import Rendezvous, TorchGroup

        self._wire = info
        if isinstance(info, StagedInit) and info.handle is not None:
            _check_trial(info.handle)
            return
        at = Rendezvous(info.master_address, info.master_port, info.world_size)
        self._group = TorchGroup(at, info.rank_offset)

    def start(self) -> None:
        if self._weights.is_updating:
            raise worker_failed(
                "start_weight_update called while a weight update is already active. Call "
                "finish_weight_update first."
            )
        self._weights.is_updating = True
        self._received = {}
        self._weights.is_half = self._backend != STAGED
        self._weights.reach("start")

    async def update(self, body: dict[str, object]) -> None:
        if not self._weights.is_updating:
            raise worker_failed("start_weight_update must be called before update_weights.")
        try:
            info = msgspec.convert(body, FakeUpdateInfo)
            metas = info.metas()
            self._weights.reach("update")
            self._received |= await asyncio.to_thread(self._receive, metas, info.handle)
        except (OSError, RuntimeError, ValueError) as error:
            self._weights.is_updating = False
            raise worker_failed(str(error).splitlines()[0]) from error
        except BaseException:
            self._weights.is_updating = False
            raise

    def _receive(
        self, metas: "list[TensorMeta]", handle: dict[str, object] | None
    ) -> "dict[str, Tensor]":
        import torch

        from holdfast.weights.carrier import Framing
        from holdfast.weights.collective import receive, split
        from holdfast.weights.shared_memory import read_shared

        if handle is not None:
            return dict(split(read_shared(handle, torch.device("cpu")), metas))
        if self._group is None:
            raise RuntimeError("init_weight_transfer_engine comes first")
        if isinstance(self._wire, NcclInit):
            framing = Framing.OVERFLOWING if self._wire.packed else Framing.TENSORS
            limit = self._wire.packed_buffer_size_bytes
            return dict(receive(self._group, metas, framing, limit))
        return dict(receive(self._group, metas))

    def finish(self) -> None:
        if not self._weights.is_updating:
            raise worker_failed(
                "finish_weight_update called without a matching start_weight_update."
            )
        self._weights.reach("finish")
        self._weights.is_updating = False
        self._weights.set(content_of_tensors(self._received))
        if self._backend == STAGED:
            from holdfast.weights.content import Fingerprint

            loaded = Fingerprint()
            self._received = dict(loaded.of(self._received.items()))
            self._weights.fingerprint = loaded.text


def content_of_tensors(tensors: "dict[str, Tensor]") -> str:
    """As `content_of`."""
    import torch

    return content_of(
        (
            name,
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.shape),
            tensor.contiguous().view(torch.uint8).numpy().tobytes(),
        )
        for name, tensor in tensors.items()
    )


def _check_trial(handle: dict[str, object]) -> None:
    import torch

    from holdfast.weights.shared_memory import check_shared

    check_shared(handle, torch.device("cpu"))
