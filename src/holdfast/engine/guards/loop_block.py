"""Finds the code that blocks the event loop.

A blocking call in an `async def` (`requests.get`, `subprocess.run`, `time.sleep`) stops everything
in the process. `watch_loop` finds the line from its own thread, warns while the line blocks, and
adds up the times for the end of the run. It does not change the loop.

A loop that belongs to Holdfast (`event_loop.run_in_own_loop`) also gets a `PatientClock`, which
stands still while the loop is blocked. This keeps the timeouts of other trajectories from running
out.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from holdfast.records.encoding.redaction import redact
from holdfast.records.failure import is_user_code, shortened

BEAT_SECONDS = 0.25
BLOCKED_SECONDS = 1.0
"""The seconds without a turn of the event loop after which the loop counts as blocked. A watched
loop should turn at every beat."""
WARN_SECONDS = 5.0
"""Total seconds of blocking below which no warning is given, for example for a module that is
imported late."""
_CPU_SHARE = 0.2
_OURS = Path(__file__).parents[2]
OURS = "holdfast's own "
"""Prefix for a line of Holdfast's own code."""
_log = logging.getLogger("holdfast.engine")


class LoopBlock(Struct):
    """How often and for how long one line of code blocked the loop."""

    where: str
    """The file, the line number, the function, and the source line."""
    times: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    present: float = 0.0
    """The seconds of the latest block."""

    def __str__(self) -> str:
        often = f"for {self.seconds:.0f} s"
        if self.times > 1:
            often = f"{self.times} times, {often} in all ({self.longest:.0f} s at most)"
        remedy = "await something asynchronous there, or `await asyncio.to_thread(…)`"
        if self.where.startswith(OURS):
            remedy = "this is not a mistake of yours"
        return (
            f"{self.where} stopped the event loop {often}, and everything else in this process "
            f"with it; {remedy}"
        )


class PatientClock:
    """The `time` of a loop, without the seconds in which the loop was blocked.

    The first `BLOCKED_SECONDS` of each block count, so that the clock of a loop that is always late
    still advances. The clock never jumps ahead, because timers would then fire early.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.watches = 0
        """The number of open watches. With a watch, the loop turns at every beat; otherwise it
        may sleep longer.
        """
        self._real = loop.time
        self._seen = self._real()
        self._lost = 0.0

    def __call__(self) -> float:
        now = self._real()
        if self.watches and now - self._seen > BLOCKED_SECONDS:
            self._lost += now - self._seen - BLOCKED_SECONDS
        self._seen = now
        return now - self._lost


def install_patient_clock(loop: asyncio.AbstractEventLoop) -> None:
    """Gives the loop a `PatientClock`. The owner of the loop calls this before the loop runs.

    A loop with a clock in C (uvloop) keeps its clock.
    """
    if isinstance(loop, asyncio.BaseEventLoop):
        loop.time = PatientClock(loop)  # type: ignore[method-assign]


class LoopWatch:
    """Watches a loop from a separate thread, and finds the code that blocks it."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._blocks: dict[str, LoopBlock] = {}
        self._warned: list[LoopBlock] = []
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loop watch", daemon=True
        )

    @property
    def found(self) -> tuple[LoopBlock, ...]:
        """The blocks for which a warning was logged, the longest first."""
        return tuple(sorted(self._warned, key=lambda block: -block.seconds))

    def start(self) -> None:
        self._turn()
        with suppress(RuntimeError):  # No thread is available: the run continues without a watch.
            self._thread.start()

    def end(self) -> None:
        """Ends the watch. Called from the loop's thread."""
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _turn(self) -> None:
        self._turns += 1
        self._timer = self._loop.call_later(BEAT_SECONDS, self._turn)

    # --- in the thread

    def _watch(self, thread: int) -> None:
        """Checks at every beat whether the loop has turned.

        The thread counts its own beats. If the thread was stopped together with the loop, for
        example in a frozen process, it does not blame any code.
        """
        turn, task, beats = self._turns, asyncio.current_task(self._loop), 0
        block: LoopBlock | None = None
        own = _Beats()
        while not self._over.wait(BEAT_SECONDS):
            if (kept := own.seconds_without_lock()) > BLOCKED_SECONDS and self._turns <= turn + 1:
                self._extend(self._begin(thread), kept)
            # A loop with many tasks also turns slowly, but then no single task is to blame.
            before = turn, task
            turn, task = self._turns, asyncio.current_task(self._loop)
            if (turn, task) != before:
                beats, block = 0, None
                continue
            beats += 1
            if beats * BEAT_SECONDS < BLOCKED_SECONDS:
                continue
            if block is None:
                block = self._begin(thread)
            self._extend(block, beats * BEAT_SECONDS)

    def _begin(self, thread: int) -> LoopBlock:
        where = _where(thread)
        block = self._blocks.setdefault(where, LoopBlock(where))
        block.times += 1
        block.present = 0.0
        return block

    def _extend(self, block: LoopBlock, seconds: float) -> None:
        block.seconds += seconds - block.present
        block.present = seconds
        block.longest = max(block.longest, seconds)
        if block.seconds >= WARN_SECONDS and block not in self._warned:
            self._warned.append(block)
            _log.warning("%s", block)


class _Beats:
    """The beats of the watching thread.

    Code that keeps the interpreter's lock, such as a library written in C, stops this thread
    together with the loop. The process then uses CPU time, which a frozen process does not.
    """

    def __init__(self) -> None:
        self._last, self._cpu = time.monotonic(), time.process_time()

    def seconds_without_lock(self) -> float:
        """Returns the seconds by which this beat is late because other code kept the interpreter's
        lock. Returns 0 if the process hardly used the CPU, as when it was frozen."""
        last, cpu = self._last, self._cpu
        self._last, self._cpu = time.monotonic(), time.process_time()
        late = self._last - last - BEAT_SECONDS
        # On a busy machine, this process gets only a part of its time.
        return late if self._cpu - cpu > late * _CPU_SHARE else 0.0


@contextmanager
def watch_loop() -> Iterator[LoopWatch]:
    """Watches the running event loop during the block. A loop can have several watches at once."""
    loop = asyncio.get_running_loop()
    clock = loop.time if isinstance(loop.time, PatientClock) else None
    watch = LoopWatch(loop)
    try:
        if clock is not None:
            clock.watches += 1
        watch.start()
        yield watch
    finally:
        watch.end()
        if clock is not None:
            clock.watches -= 1


async def sleep_real_time(seconds: float) -> None:
    """Sleeps in real time, including the time in which the loop is blocked.

    Use it for deadlines that other processes wait for.
    """
    left, end = seconds, time.monotonic() + seconds
    while True:  # At least once, so that even a sleep of nearly 0 lets other tasks run.
        await asyncio.sleep(min(left, BLOCKED_SECONDS))
        if (left := end - time.monotonic()) <= 0:
            return


def _where(thread: int) -> str:
    """Describes the innermost line of user code on the thread's stack. Without user code, describes
    the innermost line."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way, despite its name
    frames = list(traceback.extract_stack(frame))
    # Every stack contains the caller of the loop, which may be user code.
    while any(map(_is_the_loop, frames)):
        frames.pop(0)
    if not frames:
        return "the event loop itself"
    # If a step of Holdfast is below, the user's line only waits for the step.
    known = [frame for frame in frames if is_user_code(frame.filename) or _is_ours(frame)]
    innermost = (known or frames)[-1]
    line = f" ({redact(shortened(innermost.line))})" if innermost.line else ""
    owner = OURS if _is_ours(innermost) else ""
    return f"{owner}{Path(innermost.filename).name}:{innermost.lineno} in {innermost.name}{line}"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(_OURS)


def _is_the_loop(frame: traceback.FrameSummary) -> bool:
    return frame.filename == asyncio.events.__file__ and frame.name == "_run"
