"""RankGroup: the messages between the ranks of a training, and their sums.

Rank 0 leads: it sends each other rank its share of a call, and all compute it. A training in one
process is a group of one, which sends no messages. Messages are bytes and never pickled. Every wait
ends: the kernel reports a rank that has died, and a deadline ends the wait for a rank that stands
still.
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
"""Seconds within which all ranks must join. Importing torch may take a minute on a busy machine."""
COLLECTIVE_SECONDS = 1800.0
"""Seconds within which all ranks must reach a collective. They compute rows of about the same
cost."""
CAUSE_SECONDS = 10.0
"""Seconds to wait for the kernel's report of a death after a collective failed."""
FORCE_SECONDS = 30.0
"""Seconds after which rank 0 gives up waiting for a collective that has lost a rank."""
FORCED_EXIT = 5
"""The exit code of the command line if the same command continues."""
POLL_SECONDS, BUSY_POLL_SECONDS = 0.05, 0.002
IDLE_SECONDS = 2.0
"""Seconds after which a waiting rank looks less often, because no calls come between steps."""
END = b"\xc0"
"""The last message that rank 0 sends, instead of a call."""
_LOOPBACK = "GLOO_SOCKET_IFNAME"


class RankDied(HoldfastError):
    """A rank has ended or stands still. No durable data is lost, and the same command continues."""

    retryable = True


class RankGroup:
    """A group of one process that trains alone. `JoinedRanks` has several."""

    rank = 0
    size = 1
    device_type = "cpu"

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """Returns the device of this rank, if the training's device is `name`."""
        return name

    def send(self, shares: Sequence[bytes]) -> None:
        """Sends each rank its share, on rank 0. Rank 0 keeps its own share."""

    def exchange(self, message: bytes) -> list[bytes]:
        """Returns the messages of all ranks, in their order. All ranks call it."""
        return [message]

    def add_up(self, values: Tensor) -> Tensor:
        """Returns the sum over all ranks, with the same bits on each. All ranks call it."""
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """Returns rank 0's tensor. All ranks call it with a tensor of the same shape, which is
        overwritten."""
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """Encloses a computation of all ranks. Raises `RankDied` with the root cause if a rank
        died."""
        yield

    def check_alive(self) -> None:
        """Raises `RankDied` if a rank has died."""

    def on_death(self, notify: Callable[[], None]) -> None:
        """Calls `notify`, in any thread, when a rank has died."""


class JoinedRanks(RankGroup):
    """A rank among several. All ranks make it at once, with a store that all see.

    `describe` returns what rank 0 knows about a dead rank, or "". `poll` is called while this rank
    waits for the others, and raises if one of them will never come. `leave` is called in every
    other rank before it ends because rank 0 died.
    """

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
        """Waits until all ranks have joined. Returns the process ids of the others."""
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
        """Returns the data that rank 0 sent to this rank. Waits for it without limit."""
        self._calls += 1
        lengths = self._wait_for(f"call/{self._calls}")
        received = torch.zeros(sum(lengths), dtype=torch.uint8)
        dist.broadcast(received, 0)
        end = sum(lengths[: self.rank + 1])
        return received[end - lengths[self.rank] : end].numpy().tobytes()

    def _wait_for(self, key: str) -> list[int]:
        """Waits for a key in the store. In a collective, a waiting rank would look like one that is
        stuck."""
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
            self._is_in_step = False  # The other ranks wait for this one.
            if isinstance(error, RuntimeError):
                raise self._cause(error) from error
            raise
        finally:
            self._is_together = False

    def _cause(self, error: RuntimeError) -> Exception:
        """Returns the cause of a failed collective: the dead rank instead of the collective's own
        error."""
        if self._died.wait(CAUSE_SECONDS if _is_of_a_collective(error) else 0):
            return RankDied(self._death())
        if _is_of_a_collective(error):
            first = next(iter(str(error).splitlines()), "")
            return RankDied(f"the ranks did not come together: {first}")
        return error

    def fail(self, cause: str) -> None:
        """Records why this rank is about to end."""
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
        """Notes a death. The watch's thread calls it."""
        if not self.is_leader:
            self._end_with(rank)
        if self._store.check([f"left/{rank}"]):
            return  # It ended because another rank had died, which is detected anyway.
        key = f"cause/{rank}"
        cause = self._store.get(key).decode() if self._store.check([key]) else ""
        self._dead[rank] = cause or self._describe(rank)
        self._died.set()
        for notify in self._notify:
            notify()
        threading.Thread(target=self._force, name="a lost collective", daemon=True).start()

    def _end_with(self, rank: int) -> NoReturn:
        """Ends this process, which holds no data that could be lost. Rank 0 reports why."""
        if rank == 0:
            self._leave()
        else:
            self._store.set(f"left/{self.rank}", str(rank))
        os._exit(FORCED_EXIT)

    def _force(self) -> None:
        """Ends this process if a collective does not return, because it would hang for ever."""
        began = time.monotonic()
        while self._is_together:
            if time.monotonic() - began > FORCE_SECONDS:
                sys.stderr.write(f"holdfast: {self._death()}\n")
                sys.stderr.flush()
                os._exit(FORCED_EXIT)
            time.sleep(POLL_SECONDS)

    def stop_watching(self) -> None:
        """Stops watching. A rank that ends from now on does not count as dead."""
        self._watch.close()

    def part(self) -> None:
        """Parts the ranks. All ranks call it after they stopped watching. Rank 0 releases the
        others if they wait for a call. A rank that waits for something else ends when rank 0 has
        ended."""
        if self._died.is_set() or not self._is_in_step:
            return
        if self.is_leader:
            self.send([END] * self.size)
        self.exchange(END)

    def close(self) -> None:
        """Leaves torch.distributed as it was."""
        torch.set_num_threads(self._restore_threads)
        if self.device_type == "cpu" or not self._died.is_set():
            dist.destroy_process_group()  # NCCL would wait for a lost rank.


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
    """Calls `on_death` when a process of `pids` ends, with its key, in a thread of its own until it
    is closed."""

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
        """Stops the watch. `on_death` is not called afterwards."""
        os.close(self._closing)  # This wakes its reader.
        self._thread.join()
        for handle in (self._ending, *self._handles):
            os.close(handle)
