"""Shows progress to programs and in notebooks.

The program's function is called every second and once at the end. In a notebook without such a
function, a line under the cell is updated.
"""

import asyncio
import contextlib
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

from holdfast.engine.progress.counters import Progress, ProgressSnapshot
from holdfast.records.errors import UsageError
from holdfast.rollout.threads.contain import in_background

CALL_SECONDS = 1.0
LINE_SECONDS = 10.0
OnProgress = Callable[[ProgressSnapshot], object] | bool | None
"""How progress is shown. A function is called with it. True prints a line on standard error from
time to time, or shows a line in a notebook. None shows a line only in a notebook. False shows
nothing."""
_log = logging.getLogger("holdfast")


def check_on_progress(callback: object) -> None:
    """Raises `UsageError` if the value cannot be called with progress."""
    if callback is None or isinstance(callback, bool):
        return
    if not callable(callback):
        raise UsageError(f"on_progress is a function of one argument, not {callback!r:.100}")
    if inspect.iscoroutinefunction(callback):
        raise UsageError("on_progress is called, and not awaited: write `def`, not `async def`")
    try:
        inspect.signature(callback).bind(None)
    except TypeError as error:
        raise UsageError(f"on_progress is a function of one argument: {error}") from error
    except ValueError:  # Some built-in callables have no signature.
        return


@contextlib.asynccontextmanager
async def watched(progress: Progress, on_progress: OnProgress) -> AsyncIterator[None]:
    """Shows `progress` as `on_progress` asks, while the block runs and once at its end."""
    shown = _receiver(progress, on_progress)
    if shown is None:
        yield
        return
    show, every = shown
    progress.shows_rewards = True

    async def repeat() -> None:
        while True:
            await asyncio.sleep(every)
            show()

    try:
        async with in_background(repeat(), name="progress"):
            yield
    finally:
        show()


def _receiver(
    progress: Progress, on_progress: OnProgress
) -> tuple[Callable[[], None], float] | None:
    """Returns the function to call and the seconds between calls, or None if nobody asked for
    progress.
    """
    if callable(on_progress):
        return _caller(progress, on_progress), CALL_SECONDS
    if on_progress is False:
        return None
    if (display := _notebook_display()) is not None:
        return _notebook_line(progress, display), CALL_SECONDS
    return (_print_line(progress), LINE_SECONDS) if on_progress else None


def _caller(
    progress: Progress, function: Callable[[ProgressSnapshot], object]
) -> Callable[[], None]:
    """Wraps a function of the user. After it raises once, it is not called again, and the run goes
    on.
    """
    is_usable = True

    def show() -> None:
        nonlocal is_usable
        if not is_usable:
            return
        try:
            function(progress.snapshot())
        except Exception:
            is_usable = False
            _log.exception("on_progress raised, and is called no more; the run goes on")

    return show


def _print_line(progress: Progress) -> Callable[[], None]:
    def show() -> None:
        with contextlib.suppress(OSError):  # The reader has closed the stream.
            print(f"holdfast: {progress.line()}", file=sys.stderr, flush=True)  # noqa: T201

    return show


def _notebook_display() -> Any:
    """Returns IPython's `display` in the process of a notebook, or None elsewhere."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    return import_module("IPython.display").display


def _notebook_line(progress: Progress, display: Any) -> Callable[[], None]:
    """Shows one line under the cell. Each call overwrites the line."""
    handle = display({"text/plain": progress.line()}, raw=True, display_id=True)
    return lambda: handle.update({"text/plain": progress.line()}, raw=True)
