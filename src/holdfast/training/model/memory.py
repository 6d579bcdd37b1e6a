"""Measures how much memory is free on the device of a model."""

from pathlib import Path

import torch

MEMORY = Path("/proc/meminfo")


def free_memory(device: str) -> int | None:
    """Returns the free memory in bytes, or None if it is unknown."""
    if device.startswith("cuda"):
        number = device.partition(":")[2]
        return int(torch.cuda.mem_get_info(int(number) if number else None)[0])
    lines = MEMORY.read_text().splitlines() if MEMORY.exists() else []
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(available[0]) * 1024 if available else None
