"""A `RankGroup` carries the messages between the ranks of a training, and adds up their tensors.

Rank 0 leads: it sends each other rank its share of a call, and all ranks compute the call. A
training in one process is a group of one rank, which sends no messages. Messages are bytes and
never pickled. No wait lasts for ever: the kernel reports a rank that has died, and a deadline ends
the wait for a rank that hangs.
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
"""Seconds within which all ranks must reach a collective."""
CAUSE_SECONDS = 10.0
"""Seconds to wait for the kernel's report of a death after a collective failed."""
FORCE_SECONDS = 30.0
"""Seconds after which rank 0 ends its process, if a rank died and a collective still does not
return."""
FORCED_EXIT = 5
"""The exit code of a command that can be run again to continue."""
POLL_SECONDS, BUSY_POLL_SECONDS = 0.05, 0.002
IDLE_SECONDS = 2.0
"""Seconds after which a waiting rank polls less often, because the wait may then be long."""
END = b"\xc0"
"""The last message that rank 0 sends, instead of a call."""
_LOOPBACK = "GLOO_SOCKET_IFNAME"


class RankDied(HoldfastError):
    """A rank has ended or hangs. No durable data is lost, and the same command continues the
    training."""

    retryable = True


class RankGroup:
    """The group of a training in a single process. `JoinedRanks` is a group of several
    processes."""

    rank = 0
    size = 1
    device_type = "cpu"

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """Returns the device that this rank uses if the device of the training is `name`."""
        return name

    def send(self, shares: Sequence[bytes]) -> None:
        """Sends each rank its share. Only rank 0 calls this method, and it keeps its own share."""

    def exchange(self, message: bytes) -> list[bytes]:
        """Returns the messages of all ranks, in the order of ranks. All ranks call this method."""
        return [message]

    def add_up(self, values: Tensor) -> Tensor:
        """Returns the sum of `values` over all ranks, with the same bits on each rank. All ranks
        call this method."""
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """Returns rank 0's tensor. All ranks call this method, each with a tensor of the same
        shape. The other ranks' tensors are overwritten."""
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """Encloses a computation of all ranks. Raises `RankDied` with the root cause if a rank has
        died."""
        yield

    def check_alive(self) -> None:
        """Raises `RankDied` if a rank has died."""

    def on_death(self, notify: Callable[[], None]) -> None:
        """Registers `notify`, which is called when a rank has died. The call may come from any
        thread."""


class JoinedRanks(RankGroup):
    """One of several ranks. All ranks create their `JoinedRanks` at the same time, with a store
    that all of them can read.

    `describe` returns what rank 0 knows about a dead rank, or "". `poll` is called while this rank
    waits for the other ranks to join, and raises if one of them will never join. `leave` is called
    before this rank ends because rank 0 died; rank 0 never calls it.
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
        """Waits until all ranks have joined. Returns the process id of each other rank."""
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
        """Waits for a key in the store, and returns its numbers. Waiting in a collective instead
        would make this rank look stuck."""
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
        """Returns the error to raise for a failed collective. If a rank died, this is the rank's
        death instead of the collective's own error."""
        if self._died.wait(CAUSE_SECONDS if _is_of_a_collective(error) else 0):
            return RankDied(self._death())
        if _is_of_a_collective(error):
            first = next(iter(str(error).splitlines()), "")
            return RankDied(f"the ranks did not come together: {first}")
        return error

    def fail(self, cause: str) -> None:
        """Records the cause for which this rank is about to end."""
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
        """Records the death of a rank. The thread that watches the ranks calls this method."""
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
        """Ends this process because `rank` has died. This process holds no data that could be lost,
        and rank 0 reports the death."""
        if rank == 0:
            self._leave()
        else:
            self._store.set(f"left/{self.rank}", str(rank))
        os._exit(FORCED_EXIT)

    def _force(self) -> None:
        """Ends this process if the current collective does not return within `FORCE_SECONDS`,
        because it may never return."""
        began = time.monotonic()
        while self._is_together:
            if time.monotonic() - began > FORCE_SECONDS:
                sys.stderr.write(f"holdfast: {self._death()}\n")
                sys.stderr.flush()
                os._exit(FORCED_EXIT)
            time.sleep(POLL_SECONDS)

    def stop_watching(self) -> None:
        """Stops watching the other ranks. A rank that ends afterwards does not count as dead."""
        self._watch.close()

    def part(self) -> None:
        """Separates the ranks. All ranks call this method after they stopped watching. Rank 0
        releases the ranks that wait for a call. A rank that waits for anything else ends when rank
        0 has ended."""
        if self._died.is_set() or not self._is_in_step:
            return
        if self.is_leader:
            self.send([END] * self.size)
        self.exchange(END)

    def close(self) -> None:
        """Closes the group, and leaves torch.distributed as it was before."""
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
    """Makes gloo listen only on the loopback interface, because all ranks are on one machine. gloo
    reads the environment variable when a group is created."""
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
    """Calls `on_death` with the key of a process whenever a process of `pids` ends. A thread of its
    own does this until `close`."""

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
