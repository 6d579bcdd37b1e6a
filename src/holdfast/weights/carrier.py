"""Lists the carriers of weights into an engine, and says between which devices each can send.

This module does not import torch, because processes without torch choose a carrier too.
"""

import socket
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Carrier(StrEnum):
    """The carriers of weights. The values are the names that `--weight-sync` takes."""

    GLOO = "gloo"
    """A collective over TCP, from any device to any other."""
    NCCL = "nccl"
    """A collective from GPU to GPU. Each member needs a separate GPU."""
    IPC = "ipc"
    """Memory that both processes map: memory of the GPU that they share or, on CPUs, of their
    machine."""


class Framing(StrEnum):
    """How tensors are divided into messages. Sender and receiver divide them in the same way."""

    BUCKETS = "buckets"
    """A message holds as many tensors as fit below a limit."""
    OVERFLOWING = "overflowing"
    """A message ends with the tensor that exceeds the limit, as in vLLM's format."""
    TENSORS = "tensors"
    """A message holds a single tensor, as SGLang receives them."""


class Device(Struct, frozen=True):
    """The device on which a process computes."""

    kind: str
    """`cpu` or `cuda`; "" if unknown."""
    gpu: str = ""
    """The UUID of the GPU."""
    machine: str = ""
    name: str = "cpu"
    """torch's name for the device, in that process."""
    transfer: str = ""
    """The backend of weight transfer with which the engine of this worker was started; "" if none
    is known."""

    def why_not(self, carrier: Carrier, engine: "Device") -> str:
        """Returns why the carrier cannot send from this device to the device `engine`; "" if it
        can."""
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
    """Returns the device of this process. `name` is torch's name for the device."""
    try:
        machine = _BOOT.read_text().strip()
    except OSError:
        machine = socket.gethostname()
    if not name.startswith("cuda"):
        return Device("cpu", "", machine)
    import torch

    return Device("cuda", str(torch.cuda.get_device_properties(name).uuid), machine, name)
