"""Gate: where a call waits, in the thread that will run it, until it may begin.

What has to be durable before a call begins is written while the call waits here, when nothing but
that is missing: a call that is still without a thread, or a process, has left no trace.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.rollout.threads.contain import end
from holdfast.rollout.threads.mailbox import mailbox_of, set_result

Result = TypeVar("Result")
Begin = Callable[[], Awaitable[Result]]
"""Begins a call that has all it needs, and waits for what it returns."""


class NotBegun(Exception):
    """Nobody wants the call any more."""


class ThreadGate:
    """Made on the loop of whoever calls."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._mailbox = mailbox_of(loop)
        self.reached: asyncio.Future[None] = loop.create_future()
        """Done when the call waits at the gate."""
        self._decided = threading.Event()
        self._context: contextvars.Context | None = None

    def open(self) -> None:
        """Lets the call begin, in the caller's context as it is now."""
        self._context = contextvars.copy_context()
        self._decided.set()

    def shut(self) -> None:
        """The call does not begin; one that has begun is not disturbed."""
        self._decided.set()

    def wait(self) -> contextvars.Context:
        """Blocks in the call's thread: the context in which to run, or `NotBegun`."""
        self._mailbox.post(set_result, self.reached, None)
        self._decided.wait()
        if self._context is None:
            raise NotBegun
        return self._context


@asynccontextmanager
async def at_gate(
    gate: ThreadGate, call: "Coroutine[object, object, Result]"
) -> "AsyncIterator[asyncio.Task[Result]]":
    """`call`, as a task that waits at its gate; or what it raised on the way there. Where the
    block ends, so does the call."""
    running = asyncio.create_task(call)
    try:
        await asyncio.wait((running, gate.reached), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield running
    finally:
        gate.shut()
        await end(running)
