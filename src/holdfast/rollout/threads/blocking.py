"""Runs a coroutine to its end from synchronous code, even inside a running loop.

If the thread has a running loop, as in a notebook, the coroutine gets a separate thread and loop,
and the caller waits. The caller's loop stays unchanged, and nothing is patched.
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
    """Runs the coroutine, and returns its result or raises its error. An interrupt cancels the
    coroutine and waits for its end."""
    try:
        return _run_in_thread(make) if is_in_loop() else _run(make)
    except HoldfastError as error:
        raise for_caller(error)  # noqa: B904 - it is the same error


def is_in_loop() -> bool:
    """Returns whether a loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    # With a factory, the runner does not change the thread's current loop.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(make())


def _run_in_thread(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Makes the call in a separate thread."""
    outcome: Future[Result] = Future()
    cancel: list[Callable[[], object]] = []

    async def cancellable() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            return await make()
        finally:
            cancel.clear()

    def work() -> None:
        try:
            outcome.set_result(_run(cancellable))
        except BaseException as error:
            outcome.set_exception(error)

    in_context = contextvars.copy_context().run
    thread = threading.Thread(target=in_context, args=(work,), name="holdfast-sync", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():  # The caller was interrupted.
            for each in tuple(cancel):
                each()
        raise
    finally:
        thread.join()
