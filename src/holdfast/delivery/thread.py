"""An event loop in a thread of its own, for training loops that are not asynchronous."""

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
    """When the process ends, and before the threads of executors do: `atexit` comes after them, and
    a journal needs one to close. Once, however often it is registered."""
    if function in _at_exit:
        return
    _at_exit.add(function)
    register: Callable[[Callable[[], object]], object] = getattr(
        threading, "_register_atexit", atexit.register
    )
    register(function)


class LoopThread:
    """Runs coroutines while the caller waits. The thread ends with the process."""

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
        """Its result, or what it raised. An interrupt of the caller (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Calls it in the loop, soon; the caller goes on."""
        self._loop.call_soon_threadsafe(function)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def close(self, work: Coroutine[Any, Any, None]) -> None:
        """The last call: whatever it raises, the loop ends."""
        try:
            self.call(work)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the loop. Nothing may be running in it any more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_SECONDS)


_log = logging.getLogger("holdfast.delivery")


class BackgroundTask:
    """Runs until `end`, which cancels it."""

    def __init__(self, work: Coroutine[Any, Any, None], *, name: str):
        self._name = name
        self._task = asyncio.create_task(work, name=name)
        self._is_reported = False

    def check(self) -> None:
        """Raises what has ended it."""
        if self._task.done():
            self._is_reported = True
            self._task.result()

    async def end(self) -> None:
        """Ends the thread. An error that ended it earlier, and that no `check` raised, is
        logged."""
        self._task.cancel()
        await asyncio.wait({self._task})
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and not self._is_reported:
            _log.warning("%s: %s: %s", self._name, type(error).__name__, error)
