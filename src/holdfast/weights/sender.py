"""The process that sends weights. It reads a version's folder and hands it out.

It is a process of its own, so that it can be killed: a collective that waits for a dead member
cannot be cancelled. Requests come on stdin and answers go to stdout, as lines of JSON. The process
ends when its stdin ends.

    {"do": "open", "address": "127.0.0.1", "world_size": 3}   → {"port": 4711}, {"joined": true}
    {"do": "send", "folder": "…"}                             → {"sent": true, "seconds": 0.3}
    {"do": "share", "folder": "…", "part": 0}                 → {"handle": {…}, "names": […], …}
    {"do": "try"}                                             → {"handle": {…}}
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from torch import Tensor

from holdfast.weights.carrier import Carrier, Framing
from holdfast.weights.collective import (
    JOIN_SECONDS,
    SEND_SECONDS,
    BroadcastGroup,
    NamedGroup,
    Rendezvous,
    TensorMeta,
    TorchGroup,
    VllmGroup,
    cut,
    join,
    listen,
)
from holdfast.weights.shared_memory import TRIAL, SharedBuffer


def metas_of(folder: Path) -> list[TensorMeta]:
    """Returns the tensors in a folder's safetensors, from their headers."""
    return [meta for meta, _ in _listed(folder)]


def describe(metas: Sequence[TensorMeta]) -> dict[str, list[object]]:
    """Returns the description of the tensors that vLLM's weight transfer expects."""
    return {
        "names": [meta.name for meta in metas],
        "dtype_names": [meta.dtype for meta in metas],
        "shapes": [list(meta.shape) for meta in metas],
    }


def _listed(folder: Path) -> list[tuple[TensorMeta, Path]]:
    from safetensors import safe_open

    listing = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                part = tensors.get_slice(name)
                dtype = _NAMES[part.get_dtype()]
                listing.append((TensorMeta(name, dtype, tuple(part.get_shape())), file))
    return listing


_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


class TensorFolder:
    """The tensors of a version. They are read from disk only when needed, because memory may have
    no room for a second copy of the model."""

    def __init__(self, folder: Path):
        listed = _listed(folder)
        self.metas = [meta for meta, _ in listed]
        self._files = {meta.name: file for meta, file in listed}
        self._open: dict[Path, Any] = {}

    def read(self, metas: Sequence[TensorMeta]) -> Tensor:
        """Returns the bytes of the tensors, concatenated."""
        return join([self._tensor(meta.name) for meta in metas])

    def _tensor(self, name: str) -> Tensor:
        from safetensors import safe_open

        file = self._files[name]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        tensor: Tensor = self._open[file].get_tensor(name)
        return tensor


class Sender:
    """Sends weights to one group at a time, and holds one piece of shared memory at a time."""

    def __init__(self) -> None:
        self._group: BroadcastGroup | None = None
        self._shared: SharedBuffer | None = None

    def open(
        self,
        address: str,
        world_size: int,
        *,
        seconds: float = JOIN_SECONDS,
        members: str = "holdfast",
        carrier: str = Carrier.GLOO,
        device: str = "cpu",
        name: str = "",
    ) -> None:
        """Creates a group. Answers with its port at once, and answers again when all members have
        joined. `members` names the software of the receivers: holdfast, vllm or sglang."""
        if self._group is not None:
            self._group.close()
        listener = listen(address)
        at = Rendezvous(address, listener.getsockname()[1], world_size)
        send_answer({"port": at.port})
        if members == "vllm":
            self._group = VllmGroup(at, device=device, listener=listener, seconds=seconds)
        elif members == "sglang":
            self._group = NamedGroup(
                at, name=name, carrier=carrier, device=device, listener=listener, seconds=seconds
            )
        else:
            self._group = TorchGroup(
                at, 0, carrier=carrier, device=device, listener=listener, seconds=seconds
            )
        send_answer({"joined": True})

    def send(
        self, folder: str, *, seconds: float = SEND_SECONDS, framing: str = Framing.BUCKETS
    ) -> None:
        """Broadcasts a version to the group. Answers with the seconds that the broadcast took."""
        assert self._group is not None, "opened"
        tensors = TensorFolder(Path(folder))
        began = time.monotonic()
        for bucket in cut(tensors.metas, Framing(framing)):
            buffer = tensors.read(bucket).to(self._group.device)
            if framing == Framing.TENSORS:  # These receivers expect elements instead of bytes.
                buffer = buffer.view(getattr(torch, bucket[0].dtype))
            self._group.broadcast(buffer, seconds=seconds)
        send_answer({"sent": True, "seconds": time.monotonic() - began})

    def share(self, folder: str, part: int, *, device: str = "cpu") -> None:
        """Puts one message of a version into shared memory, in place of the previous message.
        Answers with its handle, its contents and the number of messages."""
        tensors = TensorFolder(Path(folder))
        parts = list(cut(tensors.metas))
        handle = self._replace(tensors.read(parts[part]), device)
        send_answer({"handle": handle, "parts": len(parts), **describe(parts[part])})

    def try_sharing(self, *, device: str = "cpu") -> None:
        handle = self._replace(torch.frombuffer(bytearray(TRIAL), dtype=torch.uint8), device)
        send_answer({"handle": handle})

    def _replace(self, content: Tensor, device: str) -> dict[str, object]:
        if self._shared is not None:
            self._shared.close()
        self._shared = SharedBuffer(content, device)
        return self._shared.handle


def send_answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answers requests until stdin ends. The process then ends, even if a collective still
    waits."""
    requests: Queue[dict[str, Any]] = Queue()
    threading.Thread(target=_read, args=[requests], name="holdfast-stdin", daemon=True).start()
    sender = Sender()
    does: dict[str, Callable[..., None]] = {
        "open": sender.open,
        "send": sender.send,
        "share": sender.share,
        "try": sender.try_sharing,
    }
    send_answer({"ready": True})
    while True:
        request = requests.get()
        try:
            does[request.pop("do")](**request)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            send_answer({"error": str(error).splitlines()[0][:300]})


def _read(requests: "Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
