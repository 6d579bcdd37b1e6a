"""Reads from the environment which place torchrun gave to this process. Needs no torch."""

import os
from collections.abc import Mapping

from msgspec import Struct


class TorchrunPlace(Struct, frozen=True):
    """The place that torchrun gave to this process."""

    rank: int
    size: int
    on_this_machine: int


def torchrun_place(environment: Mapping[str, str] = os.environ) -> TorchrunPlace | None:
    """Returns the place that torchrun gave to this process. Returns None if torchrun did not start
    this process, or started only this one."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    if not all(environment.get(name) for name in names):
        return None
    rank, size, local = (int(environment[name]) for name in names[:3])
    return TorchrunPlace(rank, size, local) if size > 1 else None
