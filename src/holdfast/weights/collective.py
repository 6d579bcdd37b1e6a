"""Broadcasts tensors from one sender to its receivers. Each message goes to all receivers at once.

The sender is rank 0. Both sides know names, types and shapes before a byte is sent, and divide the
tensors into the same messages. This module runs in the sender's own process and inside engines. It
needs only torch, and does not change the default process group.
"""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.weights.carrier import Carrier, Framing

distributed: Any = dist

BUCKET_BYTES = 64 << 20
JOIN_SECONDS = 60.0
SEND_SECONDS = 600.0
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"


class TensorMeta(NamedTuple):
    """The description of a tensor. Sender and receivers both have it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Returns the size in bytes."""
        itemsize: int = getattr(torch, self.dtype).itemsize
        return prod(self.shape) * itemsize


class Rendezvous(NamedTuple):
    """The address where the members of a group meet, and their number."""

    address: str
    port: int
    world_size: int


def listen(address: str) -> socket.socket:
    """Opens the sender's socket, at which the members of a group meet. It listens only on
    `address`, on a free port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen()
    return listener


def address_towards(host: str) -> str:
    """Returns the address of the network interface of this machine that leads to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


class BroadcastGroup(ABC):
    """One member of a group. A collective cannot be cancelled: `close` the group or end the
    process."""

    device = "cpu"
    """The device on which the group's tensors must be."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, *, seconds: float = SEND_SECONDS) -> None:
        """Blocks until `tensor` is sent or, in a receiver, until a tensor is received into
        `tensor`."""

    @abstractmethod
    def close(self) -> None: ...


class TorchGroup(BroadcastGroup):
    """A member of a group in which every member runs this class, by gloo or NCCL."""

    def __init__(
        self,
        at: Rendezvous,
        rank: int,
        *,
        carrier: str = Carrier.GLOO,
        device: str = "cpu",
        listener: socket.socket | None = None,
        seconds: float = JOIN_SECONDS,
    ):
        """Joins the group. Returns when every member has joined and a test byte was sent. Raises an
        error after `seconds`."""
        self.device = device
        timeout = timedelta(seconds=seconds)
        self._store = _open_store(at, rank, timeout, listener)
        connect = _connect_gloo if carrier == Carrier.GLOO else _connect_nccl
        self._group = connect(self._store, at, rank, timeout)
        # NCCL connects at the first message, so a message detects unreachable members.
        self.broadcast(torch.zeros(1, dtype=torch.uint8, device=device), seconds=seconds)
        self._group._set_default_timeout(timedelta(seconds=SEND_SECONDS))  # noqa: SLF001

    def broadcast(self, tensor: Tensor, *, seconds: float = SEND_SECONDS) -> None:
        self._group.broadcast([tensor], _from_first(seconds)).wait()

    def close(self) -> None:
        del self._group
        del self._store


class NamedGroup(BroadcastGroup):
    """The sender of a group whose receivers join under a name, with a helper function of
    `torch.distributed`, as SGLang's workers do. The helper decides under which keys the members
    find each other."""

    def __init__(
        self,
        at: Rendezvous,
        *,
        name: str,
        carrier: str,
        device: str,
        listener: socket.socket,
        seconds: float = JOIN_SECONDS,
    ):
        self.device = device
        timeout = timedelta(seconds=seconds)
        store = distributed.PrefixStore(name, _open_store(at, 0, timeout, listener))
        self._group, _ = distributed.distributed_c10d._new_process_group_helper(  # noqa: SLF001
            at.world_size, 0, [], distributed.Backend(carrier), store, name, timeout=timeout
        )

    def broadcast(self, tensor: Tensor, *, seconds: float = SEND_SECONDS) -> None:
        self._group.broadcast([tensor], _from_first(seconds)).wait()
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()

    def close(self) -> None:
        distributed.destroy_process_group(self._group)


class VllmGroup(BroadcastGroup):
    """The sender of a group of vLLM's own `nccl` backend. It uses vLLM's own communicator, so vLLM
    must be installed in the trainer's environment. The communicator has no deadlines. If a call
    takes too long, its process must be killed."""

    def __init__(
        self, at: Rendezvous, *, device: str, listener: socket.socket, seconds: float = JOIN_SECONDS
    ):
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        self.device = device
        group = StatelessProcessGroup.create(
            at.address,
            at.port,
            0,
            at.world_size,
            store_timeout=int(seconds),
            listen_socket=listener,
        )
        self._communicator: Any = PyNcclCommunicator(group, device=torch.device(device))

    def broadcast(self, tensor: Tensor, *, seconds: float = SEND_SECONDS) -> None:
        self._communicator.broadcast(tensor, src=0)
        torch.cuda.current_stream(tensor.device).synchronize()

    def close(self) -> None:
        self._communicator.destroy()


def _open_store(
    at: Rendezvous, rank: int, timeout: timedelta, listener: socket.socket | None
) -> Any:
    return distributed.TCPStore(
        at.address,
        at.port,
        at.world_size,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _connect_gloo(store: Any, at: Rendezvous, rank: int, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options: Any = gloo._Options()  # noqa: SLF001  # torch's only constructor
    own = at.address if rank == 0 else address_towards(at.address)
    options._devices = [gloo.create_device(hostname=own)]  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    return gloo(store, rank, at.world_size, options)


def _connect_nccl(store: Any, at: Rendezvous, rank: int, timeout: timedelta) -> Any:
    """Creates an NCCL group whose calls raise an error at their deadline. By default, torch would
    end the whole process."""
    nccl: Any = distributed.ProcessGroupNCCL
    options: Any = nccl.Options()
    options._timeout = timeout  # noqa: SLF001
    before = os.environ.get(_BLOCKING)
    os.environ[_BLOCKING] = "1"
    try:
        return nccl(store, rank, at.world_size, options)
    finally:
        if before is None:
            del os.environ[_BLOCKING]
        else:
            os.environ[_BLOCKING] = before


def _from_first(seconds: float) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    options.timeout = timedelta(seconds=seconds)
    return options


def cut(
    metas: Sequence[TensorMeta], framing: Framing = Framing.BUCKETS, limit: int = BUCKET_BYTES
) -> Iterator[list[TensorMeta]]:
    """Yields the tensors of each message, in order. A tensor that is larger than the limit is a
    message of its own."""
    bucket: list[TensorMeta] = []
    size = 0
    for meta in metas:
        if bucket and framing is not Framing.OVERFLOWING and size + meta.size > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append(meta)
        size += meta.size
        if framing is Framing.TENSORS or (framing is Framing.OVERFLOWING and size > limit):
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def receive(
    group: BroadcastGroup,
    metas: Sequence[TensorMeta],
    framing: Framing = Framing.BUCKETS,
    limit: int = BUCKET_BYTES,
) -> Iterator[tuple[str, Tensor]]:
    """Receives the tensors. Each tensor is a view of the message in which it arrived."""
    for bucket in cut(metas, framing, limit):
        size = sum(meta.size for meta in bucket)
        buffer = torch.empty(size, dtype=torch.uint8, device=group.device)
        group.broadcast(buffer)
        yield from split(buffer, bucket)


def split(buffer: Tensor, bucket: Sequence[TensorMeta]) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for meta in bucket:
        piece = buffer[start : start + meta.size]
        dtype = getattr(torch, meta.dtype)
        if start % dtype.itemsize:
            piece = piece.clone()  # A view must begin at a multiple of its type's size.
        yield meta.name, piece.view(dtype).reshape(meta.shape)
        start += meta.size


def join(bucket: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors into one buffer of bytes."""
    parts = [tensor.detach().contiguous().cpu().flatten().view(torch.uint8) for tensor in bucket]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
