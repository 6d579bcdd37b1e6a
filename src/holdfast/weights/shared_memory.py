"""Memory of one process that another process maps.

It is memory of a GPU (by CUDA IPC), or a file without a name. The handle that is sent to the other
process is plain JSON values, so that neither side unpickles. The memory ends with the process that
created it, so a killed process leaves no memory behind.
"""

import mmap
import os
from base64 import b64decode, b64encode
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions as torch_reductions

reductions: Any = torch_reductions

TRIAL = b"holdfast"
"""The test bytes with which two processes find out whether they can share memory."""
_RAW = ("handle", "ref_counter_handle", "event_handle")
_REST = ("storage_size", "storage_offset", "ref_counter_offset", "event_sync_required")


class SharedBuffer:
    """Bytes that one other process maps once, with the help of `handle`. Call `close` after that
    process has read the bytes."""

    def __init__(self, content: Tensor, device: str = "cpu"):
        self._file = -1
        if device.startswith("cuda"):
            self._tensor = content.to(device)
            self.handle: dict[str, object] = _export_cuda(self._tensor)
            return
        size = content.numel()
        self._file = os.memfd_create("holdfast-weights")
        os.truncate(self._file, max(size, 1))
        self._tensor = torch.frombuffer(mmap.mmap(self._file, max(size, 1)), dtype=torch.uint8)
        self._tensor[:size] = content
        self.handle = {"path": f"/proc/{os.getpid()}/fd/{self._file}", "size": size}

    def close(self) -> None:
        del self._tensor
        if self._file >= 0:
            os.close(self._file)


def read_shared(handle: dict[str, Any], device: torch.device) -> Tensor:
    """Returns a copy of the shared bytes. It is a copy because the owner of the memory uses the
    memory again. Raises `OSError` if the memory cannot be mapped."""
    if "path" in handle:
        with open(handle["path"], "rb") as file:
            view = mmap.mmap(file.fileno(), max(handle["size"], 1), access=mmap.ACCESS_COPY)
        return torch.frombuffer(view, dtype=torch.uint8)[: handle["size"]].clone()
    copy = _import_cuda(handle, device).clone()
    torch.cuda.current_stream(device).synchronize()  # Before the mapping ends.
    return copy


def check_shared(handle: dict[str, Any], device: torch.device) -> None:
    """Raises `OSError` if the shared memory does not hold the test bytes `TRIAL`."""
    if bytes(read_shared(handle, device).cpu().numpy()) != TRIAL:
        raise OSError("it finds other memory than the trainer's")


def _export_cuda(tensor: Tensor) -> dict[str, object]:
    torch.cuda.current_stream(tensor.device).synchronize()
    _, arguments = reductions.reduce_tensor(tensor)
    # The arguments: tensor class, size, stride, offset, storage class, dtype, device, handle,
    # storage size and offset, requires_grad, reference counter and its offset, event, whether to
    # wait for it
    handle: list[Any] = list(arguments)
    values = dict(zip(_REST, (handle[8], handle[9], handle[12], handle[14]), strict=True))
    raw = dict(zip(_RAW, (handle[7], handle[11], handle[13]), strict=True))
    return {
        "size": tensor.numel(),
        "offset": handle[3],
        **values,
        **{name: b64encode(value).decode() for name, value in raw.items()},
    }


def _import_cuda(handle: dict[str, Any], device: torch.device) -> Tensor:
    raw = {name: b64decode(handle[name]) for name in _RAW}
    tensor: Tensor = reductions.rebuild_cuda_tensor(
        Tensor,
        torch.Size([handle["size"]]),
        (1,),
        handle["offset"],
        torch.storage.TypedStorage,
        torch.uint8,
        device.index or 0,
        raw["handle"],
        handle["storage_size"],
        handle["storage_offset"],
        False,
        raw["ref_counter_handle"],
        handle["ref_counter_offset"],
        raw["event_handle"],
        handle["event_sync_required"],
    )
    return tensor
