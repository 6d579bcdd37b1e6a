"""Provides the event loop of a command. User code cannot end the loop, and a blocked loop fails no
other trajectory.

asyncio lets `SystemExit` and `KeyboardInterrupt` out of any task or callback, and then out of the
loop. Any code can stop the loop, too. In this loop, the error goes to the code that awaits the
task, so that only its rollout fails and the loop goes on.

This applies to a loop or a process that belongs to the command line or the pytest plugin. A library
call in a user's own loop changes nothing about that loop, its clock, or the garbage collector.
"""

import asyncio
import gc
import logging
import signal
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.engine.guards.loop_block import install_patient_clock
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError
from holdfast.records.failure import is_user_code

OBJECTS_BETWEEN_COLLECTIONS = 50_000
Result = TypeVar("Result")
_log = logging.getLogger("holdfast.engine")
_thresholds: list[tuple[int, int, int]] = []
"""The collector's thresholds from before each open `fewer_collections` block, the oldest first. The
last block to end restores the first entry."""


class MainCancelled(HoldfastError):
    """Code in this process, not a signal, cancelled the command."""


def run_in_own_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs `main` as `asyncio.run` does, with a `PatientClock`. The loop ends only when `main`
    itself ends, or at a real interrupt."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        install_patient_clock(loop)
        task = loop.create_task(main, name="main")
        while True:
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError as error:
                raise MainCancelled(
                    "code in this process cancelled the task of the run itself; the same command "
                    "goes on"
                ) from error
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done() or _is_real(error):
                    raise
                text = redact(repr(error))
                _log.warning("%s was raised%s; the run goes on", text, _where(error))
            except RuntimeError:
                if task.done() or loop.is_closed():
                    raise
                _log.warning("something stopped the event loop; the run goes on")


def _is_real(error: BaseException) -> bool:
    """Returns whether the error can come from Ctrl-C. With Holdfast's signal handlers installed,
    this is impossible, because they raise no error."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and default


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_user_code(frame.filename)]
    if not users:
        return " in a task or callback"
    last = users[-1]
    return f" in {Path(last.filename).name}:{last.lineno} ({last.name})"


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Makes the garbage collector run less often during the block. Only the owner of the process
    may call this.

    Turns allocate many small objects that live for one turn and form no cycles. By default, Python
    looks for cycles after every 700 allocations, which takes a tenth of a run's time and finds
    nothing. If the collector is already off, or runs less often than here, the block changes
    nothing.
    """
    thresholds = gc.get_threshold()
    _thresholds.append(thresholds)
    if 0 < thresholds[0] < OBJECTS_BETWEEN_COLLECTIONS:
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *thresholds[1:])
    try:
        yield
    finally:
        first = _thresholds[0]
        _thresholds.pop()
        if not _thresholds:
            gc.set_threshold(*first)
