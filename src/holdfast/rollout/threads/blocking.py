"""Runs a coroutine to its end from synchronous code, also inside a running loop.

In a thread that has a running loop, as in a notebook, the coroutine gets a thread and a loop of its
own, and the caller waits. The caller's loop is left as it is, and nothing is patched.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.records.errors import HoldfastError
from holdfast.records.failure import for_caller

Result = TypeVar("Result")


def run_blocking(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What the coroutine returns, or raises. An interrupt cancels it, and waits for its end."""
    try:
        found: Result = _OwnThread(make).wait() if is_in_loop() else _run(make)
    except HoldfastError as error:
        raise for_caller(error)  # noqa: B904 - it is the same error
    return found


def is_in_loop() -> bool:
    """Whether a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    # With a factory, the runner leaves the thread's current loop as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(make())


class _OwnThread:
    """One call, in a thread of its own."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]):
        self._make = make
        self._outcome: Future[Any] = Future()
        self._cancel: Callable[[], object] | None = None

    def wait(self) -> Any:
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._work,), name="holdfast-sync", daemon=True
        )
        thread.start()
        try:
            return self._outcome.result()
        except BaseException:
            if not self._outcome.done():  # The caller was interrupted.
                self._interrupt()
            raise
        finally:
            thread.join()

    def _interrupt(self) -> None:
        if self._cancel is not None:
            self._cancel()

    def _work(self) -> None:
        try:
            found = _run(self._cancellable)
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(found)

    async def _cancellable(self) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return await self._make()
        finally:
            self._cancel = None
