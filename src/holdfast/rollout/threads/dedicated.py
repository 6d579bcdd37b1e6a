"""A thread that belongs to one environment and runs its blocking calls one by one.

Python cannot stop a thread. While a call hangs, no other call begins on its thread. It is a daemon
thread, so the process can end although the call still hangs.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.threads.mailbox import mailbox_of, set_exception, set_result

Result = TypeVar("Result")
Work = Callable[[], None]


class CallTimedOut(Exception):
    """The call did not return in time."""


class OwnThread:
    """A thread that starts with its first call. After `stop`, it finishes the calls that it has
    already been given, and ends."""

    def __init__(self, what: str):
        self._what = what
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._hangs = False
        self._is_stopped = False

    async def run(
        self,
        function: Callable[[], Result],
        *,
        timeout: float | None = None,
        behind: bool = False,
    ) -> Result:
        """Runs `function` in the thread and returns its result. Raises `CallTimedOut` after
        `timeout` seconds; a later result is ignored.

        While an earlier call that timed out or was cancelled still hangs, raises
        `EnvironmentBroken`. With `behind`, the call waits for that earlier call instead.
        """
        if self._hangs and not behind:
            raise EnvironmentBroken(f"an earlier call of {self._what} still hangs")
        self._start()
        loop = asyncio.get_running_loop()
        mailbox = mailbox_of(loop)
        future: asyncio.Future[Result] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(function)
            except BaseException as error:
                self._hangs = False
                mailbox.post(set_exception, future, error)
            else:
                self._hangs = False
                mailbox.post(set_result, future, result)

        self._work.put(work)
        # Cheaper than asyncio.timeout, which would cancel the task.
        alarm = None
        if timeout is not None:
            alarm = loop.call_later(timeout, lambda: set_exception(future, CallTimedOut()))
        try:
            return await future
        except (asyncio.CancelledError, CallTimedOut):
            # The caller is gone, but the call itself may run for ever.
            self._hangs = True
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _start(self) -> None:
        if self._is_stopped:
            raise EnvironmentBroken(f"{self._what} was closed")
        if self._thread is None:
            thread = threading.Thread(
                target=_serve, args=(self._work,), name=f"holdfast-{self._what}", daemon=True
            )
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        self._is_stopped = True
        if self._thread is not None:
            self._work.put(None)


def _serve(work: "SimpleQueue[Work | None]") -> None:
    while (call := work.get()) is not None:
        call()
