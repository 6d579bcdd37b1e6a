"""StartSignal: a call waits for it, in the thread that will run it.

What has to be durable before a call begins is written while the call waits here, when nothing but
that is missing: a call that is still without a thread, or a process, has left no trace.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.rollout.threads.contain import end_task
from holdfast.rollout.threads.mailbox import mailbox_of, set_result

Result = TypeVar("Result")
Begin = Callable[[], Awaitable[Result]]
"""Begins a call that has all it needs, and waits for what it returns."""


class CallDropped(Exception):
    """Nobody wants the call any more."""


class StartSignal:
    """Made on the caller's loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._mailbox = mailbox_of(loop)
        self.reached: asyncio.Future[None] = loop.create_future()
        """Done when the call waits for its signal."""
        self._decided = threading.Event()
        self._context: contextvars.Context | None = None

    def allow(self) -> None:
        """Lets the call begin, in the caller's context as it is now."""
        self._context = contextvars.copy_context()
        self._decided.set()

    def drop(self) -> None:
        """The call does not begin; one that has begun is not disturbed."""
        self._decided.set()

    def wait(self) -> contextvars.Context:
        """Blocks in the call's thread: the context in which to run, or `CallDropped`."""
        self._mailbox.post(set_result, self.reached, None)
        self._decided.wait()
        if self._context is None:
            raise CallDropped
        return self._context


@asynccontextmanager
async def start_on_signal(
    start: StartSignal, call: "Coroutine[object, object, Result]"
) -> "AsyncIterator[asyncio.Task[Result]]":
    """`call`, as a task that waits for its signal; or what it raised on the way there. Where the
    block ends, so does the call."""
    running = asyncio.create_task(call)
    try:
        await asyncio.wait((running, start.reached), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield running
    finally:
        start.drop()
        await end_task(running)
