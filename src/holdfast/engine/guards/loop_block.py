"""Standstills: times in which one piece of code kept the event loop from turning.

A blocking call in an `async def` (`requests.get`, `subprocess.run`, `time.sleep`) stops everything
in the process. Nobody else is to suffer for it (I4), and its author wants to know. So the loop's
clock stands still as long as the loop does: timeouts of others do not run out because of it. And
the lines that do it are looked for by a thread, told while it lasts, and counted for the end.
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

from holdfast.records.failure import is_theirs, shortened
from holdfast.records.redaction import redact

BEAT = 0.25
LATE = 1.0
"""A loop that does not turn for so long stands still; it is due at every beat."""
TOLD_AFTER = 5.0
"""Less than this in all is nobody's worry: a module that is imported late, for instance."""
_SHARE = 0.2
_OURS = Path(__file__).parents[2]
_log = logging.getLogger("holdfast.engine")


class Standstill(Struct):
    """What one line of code did to the loop."""

    where: str
    """The file, the line, the function, and what stands there."""
    times: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    present: float = 0.0
    """Of them, those of the last time."""

    def __str__(self) -> str:
        often = f"for {self.seconds:.0f} s"
        if self.times > 1:
            often = f"{self.times} times, {often} in all ({self.longest:.0f} s at most)"
        return (
            f"{self.where} stopped the event loop {often}, and everything else in this process "
            "with it; await something asynchronous there, or `await asyncio.to_thread(…)`"
        )


class PatientTime:
    """What stands in for the `time` of a loop, once and for the loop's life.

    Without the time that was lost in standstills, but for their beginning: the clock of a loop that
    is always late goes slowly, but it goes. It never jumps, or timers would fire early.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.watchers = 0
        """While there are any, the loop turns at every beat; else it may sleep as it likes."""
        self._real = loop.time
        self._seen = self._real()
        self._lost = 0.0

    def __call__(self) -> float:
        now = self._real()
        if self.watchers and now - self._seen > LATE:
            self._lost += now - self._seen - LATE
        self._seen = now
        return now - self._lost


class Watch:
    """Looks, from a thread of its own, what a loop does that does not turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._seen: dict[str, Standstill] = {}
        self._told: list[Standstill] = []
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = threading.Event()
        self._looker = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="standstills", daemon=True
        )

    @property
    def found(self) -> tuple[Standstill, ...]:
        """Those that are worth telling, the worst first."""
        return tuple(sorted(self._told, key=lambda one: -one.seconds))

    def start(self) -> None:
        self._turn()
        with suppress(RuntimeError):  # No thread can be had: nobody looks, and the run goes on.
            self._looker.start()

    def end(self) -> None:
        """From the loop's thread."""
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()
        if self._looker.ident is not None:
            self._looker.join()

    def _turn(self) -> None:
        self._turns += 1
        self._timer = self._loop.call_later(BEAT, self._turn)

    # --- in the thread

    def _look(self, thread: int) -> None:
        """Counts its own beats: one that was stopped together with the loop blames nobody."""
        turn, doing, beats = self._turns, asyncio.current_task(self._loop), 0
        standstill: Standstill | None = None
        own = _Beats()
        while not self._over.wait(BEAT):
            if (kept := own.kept_waiting()) > LATE and self._turns <= turn + 1:
                self._lasts(self._begun(thread), kept)
            # A loop with very much to do turns slowly, too, but not because of a single task.
            before = turn, doing
            turn, doing = self._turns, asyncio.current_task(self._loop)
            if (turn, doing) != before:
                beats, standstill = 0, None
                continue
            beats += 1
            if beats * BEAT < LATE:
                continue
            if standstill is None:
                standstill = self._begun(thread)
            self._lasts(standstill, beats * BEAT)

    def _begun(self, thread: int) -> Standstill:
        where = _where(thread)
        standstill = self._seen.setdefault(where, Standstill(where))
        standstill.times += 1
        standstill.present = 0.0
        return standstill

    def _lasts(self, standstill: Standstill, seconds: float) -> None:
        standstill.seconds += seconds - standstill.present
        standstill.present = seconds
        standstill.longest = max(standstill.longest, seconds)
        if standstill.seconds >= TOLD_AFTER and standstill not in self._told:
            self._told.append(standstill)
            _log.warning("%s", standstill)


class _Beats:
    """The beats of the thread that looks. What keeps the interpreter's lock, as a library written
    in C may, stops that thread as well as the loop; but then this process computes meanwhile, which
    one that is frozen does not."""

    def __init__(self) -> None:
        self._last, self._cpu = time.monotonic(), time.process_time()

    def kept_waiting(self) -> float:
        """Seconds since the last beat in which the lock was kept from this thread."""
        last, cpu = self._last, self._cpu
        self._last, self._cpu = time.monotonic(), time.process_time()
        late = self._last - last - BEAT
        # A busy machine gives this process a part of its time.
        return late if self._cpu - cpu > late * _SHARE else 0.0


@contextmanager
def standstills_watched() -> Iterator[Watch]:
    """Around work on the running loop. Others may watch the same one."""
    loop = asyncio.get_running_loop()
    clock = _patient(loop)
    watch = Watch(loop)
    try:
        if clock is not None:
            clock.watchers += 1
        watch.start()
        yield watch
    finally:
        watch.end()
        if clock is not None:
            clock.watchers -= 1


async def sleep_through(seconds: float) -> None:
    """For what others wait for outside of this process: standstills count."""
    left, end = seconds, time.monotonic() + seconds
    while True:  # Once at least: who sleeps for next to nothing lets others have their turn, too.
        await asyncio.sleep(min(left, LATE))
        if (left := end - time.monotonic()) <= 0:
            return


def _patient(loop: asyncio.AbstractEventLoop) -> PatientTime | None:
    """The loop's clock; None for a loop that keeps its own, such as uvloop's."""
    if not isinstance(loop, asyncio.BaseEventLoop):
        return None
    if not isinstance(loop.time, PatientTime):
        loop.time = PatientTime(loop)  # type: ignore[method-assign]
    return loop.time


def _where(thread: int) -> str:
    """The innermost line of the user's, if there is one in what the thread does now."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way, despite its name
    frames = list(traceback.extract_stack(frame))
    # What started the loop is on every stack, and may be the user's, too.
    while any(map(_is_the_loop, frames)):
        frames.pop(0)
    if not frames:
        return "the event loop itself"
    # Below a step of ours, the user's line only waits: what runs there is ours.
    theirs = [frame for frame in frames if is_theirs(frame.filename) or _is_ours(frame)]
    found = (theirs or frames)[-1]
    line = f" ({redact(shortened(found.line))})" if found.line else ""
    whose = "holdfast's own " if _is_ours(found) else ""
    return f"{whose}{Path(found.filename).name}:{found.lineno} in {found.name}{line}"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(_OURS)


def _is_the_loop(frame: traceback.FrameSummary) -> bool:
    return frame.filename == asyncio.events.__file__ and frame.name == "_run"
