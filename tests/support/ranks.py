"""Ranks that are forks of a process which has imported torch."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.training.ranks import launch
from holdfast.training.ranks.group import RankGroup
from support.fork_server import TrainingPopen


@contextmanager
def joined(size: int, logs: Path) -> Iterator[RankGroup]:
    """This process is rank 0."""
    with pytest.MonkeyPatch.context() as patch:
        forking = SimpleNamespace(**{**vars(subprocess), "Popen": TrainingPopen})
        patch.setattr(launch, "subprocess", forking)
        with launch.open_ranks(size, "cpu", logs=logs) as group:
            yield group
