"""Running blocking user code without blocking the loop, and without ever waiting for it at exit.

Python cannot stop a thread. One that hangs is left behind (a daemon, so the process can still
end), is counted, and is bounded: with too many left behind, new work is refused loudly.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.containment import ExitCalled

MAX_ABANDONED = 64
Result = TypeVar("Result")


class DaemonThreads:
    """A thread per call. Cancelling the await abandons the thread."""

    def __init__(self, what: str):
        self._what = what
        self._abandoned = 0

    async def run(self, function: Callable[[], Result]) -> Result:
        if self._abandoned >= MAX_ABANDONED:
            raise EnvironmentBroken(
                f"{self._abandoned} {self._what} are still hanging; no more are started"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(function)
            except BaseException as error:
                _tell(loop, _set_exception, future, error)
            else:
                _tell(loop, _set_result, future, result)

        thread = threading.Thread(target=work, name=f"holdfast-{self._what}", daemon=True)
        thread.start()
        try:
            return await future
        except asyncio.CancelledError:
            if thread.is_alive():
                self._abandoned += 1
            raise


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)


def _set_result(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[object]", error: BaseException) -> None:
    if future.done():
        return
    # None of these may travel through a future: they would end the loop, or be refused by it.
    if isinstance(error, SystemExit | KeyboardInterrupt | StopIteration):
        error = ExitCalled(f"user code raised {error!r}")
    future.set_exception(error)
