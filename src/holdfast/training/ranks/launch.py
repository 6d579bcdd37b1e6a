"""Starts the processes of the other ranks, unless torchrun started all processes.

A process that is started here runs the same Python in a session of its own, and writes its output
into a file. It watches the process of rank 0, and ends when that process ends.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import FileStore, fsdp  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from holdfast.log_files import open_log, tail
from holdfast.records.errors import UsageError
from holdfast.training.ranks.group import JoinedRanks, RankDied, RankGroup
from holdfast.training.ranks.place import TorchrunPlace, torchrun_place

FOLLOWER = "holdfast.training.follower"
"""The module that the other ranks run."""
END_SECONDS = 10.0
_NEEDED = ("set_force_sum_reduction_for_comms", "set_reduce_scatter_unused_params")
"""Methods of FSDP2 that torch has from 2.13 on."""


def check_ranks(size: int, device: str, *, gpus: int) -> None:
    """Raises `UsageError` if `size` ranks cannot train together on this machine."""
    if size == 1:
        return
    if not hasattr(os, "pidfd_open"):
        raise UsageError("several ranks need Linux 5.3 or newer: train with one (--ranks 1)")
    if missing := [name for name in _NEEDED if not hasattr(fsdp.FSDPModule, name)]:
        raise UsageError(
            f"several ranks need torch 2.13 or newer (this one has no {missing[0]}): install it, "
            "or train with one (--ranks 1)"
        )
    kind, _, number = device.partition(":")
    if number:
        raise UsageError(
            f"device {device!r} is one GPU, and {size} ranks take one each: give --device {kind}, "
            "and choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    if kind == "cuda" and size > gpus:
        raise UsageError(
            f"{size} ranks take a GPU each, and torch sees {gpus} here: give --ranks {max(gpus, 1)}"
        )


@contextmanager
def open_ranks(size: int, device: str, *, logs: Path) -> Iterator[RankGroup]:
    """Joins all ranks, the first of which is this process. At the end of the block, ends the
    processes that it started."""
    place = torchrun_place()
    if place is not None:
        with _by_torchrun(place, size, device) as group:
            yield group
    elif size == 1:
        yield RankGroup()
    else:
        with _started(size, device, logs) as group:
            yield group


@contextmanager
def _by_torchrun(place: TorchrunPlace, size: int, device: str) -> Iterator[RankGroup]:
    if place.rank:
        raise UsageError(
            f"this is rank {place.rank} of torchrun: under it, use the command `holdfast train`; "
            "from Python, give settings with ranks=N and start it plainly"
        )
    if size != place.size:
        raise UsageError(
            f"ranks={size}, and torchrun started {place.size}: leave one of the two out"
        )
    group = join_torchrun(place, device)
    try:
        yield group
    finally:
        group.stop_watching()
        group.part()
        group.close()


def join_torchrun(place: TorchrunPlace, device: str) -> JoinedRanks:
    if place.on_this_machine != place.size:
        raise UsageError(
            f"torchrun started {place.size} ranks on several machines: all of them have to be on "
            "one (--nnodes 1)"
        )
    store, _, _ = next(rendezvous("env://"))
    kind = device.partition(":")[0]
    return JoinedRanks(store, rank=place.rank, size=place.size, device_type=kind)


@contextmanager
def _started(size: int, device: str, logs: Path) -> Iterator[RankGroup]:
    kind = device.partition(":")[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-ranks-") as folder:
        store = Path(folder) / "store"
        processes = _Processes(size, kind, store=store, logs=logs)
        try:
            group = JoinedRanks(
                FileStore(str(store), size),
                rank=0,
                size=size,
                device_type=kind,
                describe=processes.describe,
                poll=processes.check,
            )
            try:
                yield group
            finally:
                group.stop_watching()
                processes.end()
                group.close()
        finally:
            processes.end()


class _Processes:
    """The processes of ranks 1 and up."""

    def __init__(self, size: int, kind: str, *, store: Path, logs: Path):
        self._logs = {rank: logs / f"rank-{rank}.log" for rank in range(1, size)}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for rank, log in self._logs.items():
            command = [sys.executable, "-m", FOLLOWER, str(store), str(rank), str(size), kind]
            with open_log(log, anew=True) as output:
                self._running[rank] = subprocess.Popen(  # noqa: S603 - our own module
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def check(self) -> None:
        """Raises `RankDied` if a process ended before it joined."""
        for rank, process in self._running.items():
            if process.poll() is not None:
                raise RankDied(f"rank {rank} did not start: {self.describe(rank)}")

    def describe(self, rank: int) -> str:
        """Describes how the process of a rank ended: the signal, or the last line that the process
        printed."""
        try:
            code = self._running[rank].wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"see {self._logs[rank]}"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        text = tail(self._logs[rank], 1).strip()
        return f"{text or f'exit code {code}'} (see {self._logs[rank]})"

    def end(self) -> None:
        """Kills the processes, which hold no data that could be lost."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()


def join_started(store: Path, *, rank: int, size: int, kind: str) -> JoinedRanks:
    """Joins the ranks from a process that rank 0 started."""
    leader = os.getppid()

    def leave() -> None:
        shutil.rmtree(store.parent, ignore_errors=True)  # Otherwise rank 0 would do this.

    def poll() -> None:
        if os.getppid() != leader:
            leave()
            raise RankDied("rank 0 has ended")

    file = FileStore(str(store), size)
    return JoinedRanks(file, rank=rank, size=size, device_type=kind, poll=poll, leave=leave)
