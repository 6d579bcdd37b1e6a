"""Runs an event loop in its own thread, for training loops that are not asynchronous."""

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
JOIN_SECONDS = 30.0


_at_exit: set[Callable[[], object]] = set()


def call_at_exit(function: Callable[[], object]) -> None:
    """Registers a function to be called when the process ends, before the threads of executors end.
    `atexit` would be too late, because a journal needs such a thread to close. A function that is
    registered twice is called once."""
    if function in _at_exit:
        return
    _at_exit.add(function)
    register: Callable[[Callable[[], object]], object] = getattr(
        threading, "_register_atexit", atexit.register
    )
    register(function)


class LoopThread:
    """Runs coroutines in its own thread while the caller waits. The thread ends with the
    process."""

    def __init__(self, name: str):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs the coroutine and returns its result, or raises its error. An interrupt of the
        caller (Ctrl-C) cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Schedules the function in the loop and returns at once."""
        self._loop.call_soon_threadsafe(function)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def close(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a last coroutine, and ends the loop even if the coroutine raises."""
        try:
            self.call(work)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the loop. No coroutine may be running in it."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_SECONDS)


_log = logging.getLogger("holdfast.delivery")


class BackgroundTask:
    """A coroutine that runs in the background until `end` cancels it."""

    def __init__(self, work: Coroutine[Any, Any, None], *, name: str):
        self._name = name
        self._task = asyncio.create_task(work, name=name)
        self._is_reported = False

    def check(self) -> None:
        """Raises the error that ended the task, if there is one."""
        if self._task.done():
            self._is_reported = True
            self._task.result()

    async def end(self) -> None:
        """Cancels the task and waits for it. An earlier error that no `check` raised is logged."""
        self._task.cancel()
        await asyncio.wait({self._task})
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and not self._is_reported:
            _log.warning("%s: %s: %s", self._name, type(error).__name__, error)
