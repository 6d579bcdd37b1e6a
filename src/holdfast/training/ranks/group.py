"""RankGroup: what the ranks of a training say to each other, and what they add up.

Rank 0 leads: it sends each of the others its share of a call, and all compute it. A training in one
process is a group of one, which says nothing. Messages are bytes; nothing is pickled. No wait is
without an end: a rank that has died is noticed by the kernel, one that stands still by a deadline.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch import distributed as dist

from holdfast.records.errors import HoldfastError, UsageError
from holdfast.version import installed_version

START_SECONDS = 600.0
"""Within which all ranks have to be there; torch alone may take a minute on a busy machine."""
COLLECTIVE_SECONDS = 1800.0
"""Within which all ranks have to come together: they compute rows of about the same cost."""
CAUSE_SECONDS = 10.0
"""A collective that failed may know of a death before the kernel has told."""
FORCE_SECONDS = 30.0
"""After which rank 0 gives up waiting for a collective that has lost a rank."""
FORCED_EXIT = 5
"""The exit code of the command line when the same command continues."""
POLL_SECONDS, BUSY_POLL_SECONDS = 0.05, 0.002
IDLE_SECONDS = 2.0
"""Seconds after which a waiting rank looks less often: between steps there are no calls."""
END = b"\xc0"
"""The last message that rank 0 sends, instead of a call."""
_LOOPBACK = "GLOO_SOCKET_IFNAME"


class RankDied(HoldfastError):
    """A rank has ended, or stands still. Nothing durable is lost, and the same command
    continues."""

    retryable = True


class RankGroup:
    """One process that trains alone; `JoinedRanks` is several."""

    rank = 0
    size = 1
    device_type = "cpu"

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this rank, if the training's is `name`."""
        return name

    def send(self, shares: Sequence[bytes]) -> None:
        """Rank 0: to each rank its share; its own is not sent."""

    def exchange(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, in their order. All ranks call it."""
        return [message]

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all ranks, which is the same bits on each. All call it."""
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """Rank 0's. All call it, with a tensor of the same shape, which is overwritten."""
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """While all ranks compute. Raises `RankDied` with the root cause where one died."""
        yield

    def check_alive(self) -> None:
        """Raises `RankDied` when one has."""

    def on_death(self, notify: Callable[[], None]) -> None:
        """Calls it, in any thread, when a rank has died."""


class JoinedRanks(RankGroup):
    """A rank among several. Made on all of them at once, with a store that all see.

    `describe`: what rank 0 knows of another that has died, "" for nothing. `poll`: called while it
    waits for the others; raises when one of them will never come. `leave`: the last that another
    rank does before it ends because rank 0 died."""

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        size: int,
        device_type: str,
        describe: Callable[[int], str] = lambda rank: "",
        poll: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
    ):
        if dist.is_initialized():
            raise UsageError("torch.distributed is in use in this process: train in one of its own")
        self.rank = rank
        self.size = size
        self.device_type = device_type
        self._store = store
        self._describe = describe
        self._leave = leave
        self._is_in_step = True
        self._dead: dict[int, str] = {}
        self._died = threading.Event()
        self._notify: list[Callable[[], None]] = []
        self._is_together = False
        self._calls = 0
        self._watch = DeathWatch(self._others(poll), self._note_death)
        threads = torch.get_num_threads()
        try:
            with self.together():
                self._join()
        except BaseException:
            self._watch.close()
            raise
        self._restore_threads = threads
        if device_type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, threads // size))

    def _others(self, poll: Callable[[], None]) -> Mapping[int, int]:
        """The processes of the other ranks, when all are there."""
        self._store.set(f"pid/{self.rank}", str(os.getpid()))
        others = [rank for rank in range(self.size) if rank != self.rank]
        deadline = time.monotonic() + START_SECONDS
        while not self._store.check([f"pid/{rank}" for rank in others]):
            poll()
            if time.monotonic() > deadline:
                missing = [rank for rank in others if not self._store.check([f"pid/{rank}"])]
                raise RankDied(
                    f"rank {missing[0]} was not there after {START_SECONDS:.0f} s"
                    f"{_more(self._describe(missing[0]))}"
                )
            time.sleep(POLL_SECONDS)
        return {rank: int(self._store.get(f"pid/{rank}")) for rank in others}

    def _join(self) -> None:
        backend = "gloo" if self.device_type == "cpu" else "cpu:gloo,cuda:nccl"
        if self.device_type == "cuda":
            torch.cuda.set_device(self.rank)
        with _on_loopback():
            dist.init_process_group(
                backend,
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            )
        self._check_versions()

    def _check_versions(self) -> None:
        python = sys.version.split()[0]
        own = f"holdfast {installed_version()}, torch {torch.__version__}, Python {python}"
        versions = [version.decode() for version in self.exchange(own.encode())]
        if wrong := [rank for rank, version in enumerate(versions) if version != versions[0]]:
            raise UsageError(
                f"rank {wrong[0]} has {versions[wrong[0]]}, and rank 0 has {versions[0]}: start "
                "all ranks in the same environment"
            )

    def device(self, name: str) -> str:
        return f"cuda:{self.rank}" if self.device_type == "cuda" else name

    def send(self, shares: Sequence[bytes]) -> None:
        assert self.is_leader, "rank 0 alone leads"
        self._calls += 1
        self._store.set(f"call/{self._calls}", " ".join(str(len(share)) for share in shares))
        dist.broadcast(_as_tensor(b"".join(shares)), 0)

    def receive(self) -> bytes:
        """The data that rank 0 sent to this rank; waits for it without limit."""
        self._calls += 1
        lengths = self._wait_for(f"call/{self._calls}")
        received = torch.zeros(sum(lengths), dtype=torch.uint8)
        dist.broadcast(received, 0)
        end = sum(lengths[: self.rank + 1])
        return received[end - lengths[self.rank] : end].numpy().tobytes()

    def _wait_for(self, key: str) -> list[int]:
        """Waits at the store: in a collective, a stuck rank would look like one that has time."""
        since = time.monotonic()
        while not self._store.check([key]):
            is_idle = time.monotonic() - since > IDLE_SECONDS
            time.sleep(POLL_SECONDS if is_idle else BUSY_POLL_SECONDS)
        return [int(length) for length in self._store.get(key).split()]

    def exchange(self, message: bytes) -> list[bytes]:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(message)]))
        longest = max(int(length) for length in lengths)
        buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(buffers, _as_tensor(message.ljust(longest, b"\0")))
        both = zip(buffers, lengths, strict=True)
        return [values[: int(length)].numpy().tobytes() for values, length in both]

    def add_up(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        dist.broadcast(values, 0)
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        self.check_alive()
        if not self._is_in_step:
            raise RankDied("the ranks are out of step since a call of theirs failed: start anew")
        self._is_together = True
        try:
            yield
        except BaseException as error:
            self._is_in_step = False  # The others wait for this one.
            if isinstance(error, RuntimeError):
                raise self._cause(error) from error
            raise
        finally:
            self._is_together = False

    def _cause(self, error: RuntimeError) -> Exception:
        """The cause of a failed collective: the dead rank, not the collective's own error."""
        if self._died.wait(CAUSE_SECONDS if _is_of_a_collective(error) else 0):
            return RankDied(self._death())
        if _is_of_a_collective(error):
            first = next(iter(str(error).splitlines()), "")
            return RankDied(f"the ranks did not come together: {first}")
        return error

    def fail(self, cause: str) -> None:
        """Leaves word of why this rank is about to end."""
        self._store.set(f"cause/{self.rank}", cause)

    def check_alive(self) -> None:
        if self._died.is_set():
            raise RankDied(self._death())

    def on_death(self, notify: Callable[[], None]) -> None:
        self._notify.append(notify)
        if self._died.is_set():
            notify()

    def _death(self) -> str:
        rank, cause = next(iter(self._dead.items()))
        return f"rank {rank} of {self.size} has ended{_more(cause)}"

    def _note_death(self, rank: int) -> None:
        """In the watch's thread."""
        if not self.is_leader:
            self._end_with(rank)
        if self._store.check([f"left/{rank}"]):
            return  # It ended because another one had died, which is noticed by itself.
        key = f"cause/{rank}"
        cause = self._store.get(key).decode() if self._store.check([key]) else ""
        self._dead[rank] = cause or self._describe(rank)
        self._died.set()
        for notify in self._notify:
            notify()
        threading.Thread(target=self._force, name="a lost collective", daemon=True).start()

    def _end_with(self, rank: int) -> NoReturn:
        """It holds nothing that could be lost, and rank 0 says why."""
        if rank == 0:
            self._leave()
        else:
            self._store.set(f"left/{self.rank}", str(rank))
        os._exit(FORCED_EXIT)

    def _force(self) -> None:
        """A collective that does not return would hold this process for ever."""
        began = time.monotonic()
        while self._is_together:
            if time.monotonic() - began > FORCE_SECONDS:
                sys.stderr.write(f"holdfast: {self._death()}\n")
                sys.stderr.flush()
                os._exit(FORCED_EXIT)
            time.sleep(POLL_SECONDS)

    def stop_watching(self) -> None:
        """Whoever ends from now on is no dead rank."""
        self._watch.close()

    def part(self) -> None:
        """All ranks call it when they watch no more: rank 0 lets the others go, if they wait for a
        call. Those that wait for something else end when it has ended."""
        if self._died.is_set() or not self._is_in_step:
            return
        if self.is_leader:
            self.send([END] * self.size)
        self.exchange(END)

    def close(self) -> None:
        """Leaves torch.distributed as it was."""
        torch.set_num_threads(self._restore_threads)
        if self.device_type == "cpu" or not self._died.is_set():
            dist.destroy_process_group()  # NCCL would wait for a rank that is lost.


def _more(cause: str) -> str:
    return f": {cause}" if cause else ""


def _as_tensor(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _is_of_a_collective(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        word in text for word in ("gloo", "Gloo", "NCCL", "Connection", "Timed out")
    )


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Makes gloo listen on loopback only, whatever the host's name resolves to, because all ranks
    are on one machine. gloo reads this variable when a group is made."""
    before = os.environ.get(_LOOPBACK)
    os.environ[_LOOPBACK] = "lo"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOOPBACK]
        else:
            os.environ[_LOOPBACK] = before


class DeathWatch:
    """Calls `on_death` with the key of each process of `pids` that ends, in a thread of its own,
    until it is closed."""

    def __init__(self, pids: Mapping[int, int], on_death: Callable[[int], None]):
        self._handles: dict[int, int] = {}
        self._on_death = on_death
        self._ending, self._closing = os.pipe()
        dead = []
        for key, pid in pids.items():
            try:
                self._handles[os.pidfd_open(pid)] = key
            except ProcessLookupError:
                dead.append(key)
        self._thread = threading.Thread(target=self._watch, args=(dead,), name="ranks that die")
        self._thread.daemon = True
        self._thread.start()

    def _watch(self, dead: list[int]) -> None:
        for key in dead:
            self._on_death(key)
        poll = select.poll()
        for handle in (self._ending, *self._handles):
            poll.register(handle, select.POLLIN)
        while True:
            for handle, _ in poll.poll():
                if handle == self._ending:
                    return
                poll.unregister(handle)
                self._on_death(self._handles[handle])

    def close(self) -> None:
        """Nothing is called afterwards."""
        os.close(self._closing)  # Its reader wakes up.
        self._thread.join()
        for handle in (self._ending, *self._handles):
            os.close(handle)
