"""The event loop of a command, which no user code ends.

asyncio lets `SystemExit` and `KeyboardInterrupt` out of any task or callback, and out of the loop
with it; and anyone can stop the loop. Here that costs whoever did it: what a task raised is for
those who wait for it (a rollout then fails with it), and the loop goes on.
"""

import asyncio
import logging
import signal
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from holdfast.records.errors import HoldfastError
from holdfast.records.failure import is_theirs
from holdfast.records.redaction import redact

Result = TypeVar("Result")
_log = logging.getLogger("holdfast.engine")


class MainCancelled(HoldfastError):
    """Code in this process cancelled the command itself; no signal did."""


def run_to_its_end(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`. Only `main` itself and a real interrupt end it."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
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
                said = redact(repr(error))
                _log.warning("%s was raised%s; the run goes on", said, _where(error))
            except RuntimeError:
                if task.done() or loop.is_closed():
                    raise
                _log.warning("something stopped the event loop; the run goes on")


def _is_real(error: BaseException) -> bool:
    """Whether the user may have pressed a key: once signals are handled, none raises anything."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and default


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if is_theirs(frame.filename)]
    if not theirs:
        return " in a task or callback"
    last = theirs[-1]
    return f" in {Path(last.filename).name}:{last.lineno} ({last.name})"
