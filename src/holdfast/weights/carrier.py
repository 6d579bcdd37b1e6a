"""The carriers of weights into an engine, by where engine and trainer compute. Imports without
torch, because strategies choose a carrier in processes that have none."""

import socket
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Carrier(StrEnum):
    """As `--weight-sync` takes them."""

    GLOO = "gloo"
    """A collective over TCP, from any device to any other."""
    NCCL = "nccl"
    """A collective from GPU to GPU. No two of its members are on one GPU."""
    IPC = "ipc"
    """Memory that both map: of the GPU that they share, or, on CPUs, of one machine."""


class Framing(StrEnum):
    """How tensors are cut into messages: the same on both sides."""

    BUCKETS = "buckets"
    """One message for as many tensors as stay below a limit."""
    OVERFLOWING = "overflowing"
    """As vLLM packs them: a message ends with the tensor that exceeds the limit."""
    TENSORS = "tensors"
    """One message for each tensor, as SGLang receives them."""


class Device(Struct, frozen=True):
    """Where a process computes."""

    kind: str
    """cpu or cuda; "" where it is not known."""
    gpu: str = ""
    """The UUID of the GPU."""
    machine: str = ""
    name: str = "cpu"
    """As torch calls it, in that process."""

    def why_not(self, carrier: Carrier, engine: "Device") -> str:
        """Why a carrier cannot go from here to there; "" if it can."""
        if carrier is Carrier.GLOO:
            return ""
        if carrier is Carrier.NCCL:
            return self._why_no_nccl(engine)
        if (self.kind, self.machine, self.gpu) != (engine.kind, engine.machine, engine.gpu):
            return "it shares no GPU, nor the memory of a CPU, with the trainer"
        return ""

    def _why_no_nccl(self, engine: "Device") -> str:
        if self.kind != "cuda":
            return "the trainer is on no GPU (--device cuda)"
        if engine.kind != "cuda":
            return "it is on no GPU"
        if self.gpu and self.gpu == engine.gpu:
            return "it shares the trainer's GPU: --weight-sync ipc"
        return ""


def this_device(name: str = "cpu") -> Device:
    """That of this process, by torch's name for it."""
    try:
        machine = _BOOT.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    if not name.startswith("cuda"):
        return Device("cpu", "", machine)
    import torch

    return Device("cuda", str(torch.cuda.get_device_properties(name).uuid), machine, name)
