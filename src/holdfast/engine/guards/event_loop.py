"""The event loop of a command: user code does not end it, and a blocked loop fails nobody else.

asyncio lets `SystemExit` and `KeyboardInterrupt` out of any task or callback, and out of the loop
with it; and any code can stop the loop. Here the error goes to whatever awaits that task (a rollout
then fails with it), and the loop goes on.

All of this is for a loop, or a process, that belongs to the command line or the pytest plugin. A
library call in a user's own loop changes nothing about that loop, its clock, or the collector.
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
"""The thresholds that each `fewer_collections` met. The last block to end restores the first."""


class MainCancelled(HoldfastError):
    """Code in this process cancelled the command itself; no signal did."""


def run_in_own_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`, with a patient clock. Only `main` itself and a real interrupt end it."""
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
    """Whether it may come from the keyboard: once signals are handled, none raises anything."""
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
    """For the owner of the process, around its work.

    Turns allocate many small objects that live for one turn and form no cycles. By default Python
    looks for cycles after every 700 of them, which takes a tenth of a run's time and finds nothing.
    Where collections are off, or rarer already, nothing is changed.
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
