"""Mailboxes: how threads report to an event loop. StartSignal: how a call waits for its start."""

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.records.failure import as_exception
from holdfast.records.foreign import readable
from holdfast.rollout.threads.contain import end_task

Result = TypeVar("Result")


class Mailbox:
    """Callbacks that threads post to one loop, which is woken once for all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._callbacks: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_called = False

    def post(self, callback: Callable[..., None], *args: object) -> None:
        self._callbacks.append((callback, args))
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # First: what is posted from now on calls again.
        while self._callbacks:
            callback, args = self._callbacks.popleft()
            callback(*args)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = (
    weakref.WeakKeyDictionary()
)


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Asked for on the loop itself; posted to from anywhere."""
    try:
        return _mailboxes[loop]
    except KeyError:
        made = _mailboxes[loop] = Mailbox(loop)
        return made


def set_result(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():
        future.set_result(result)


def set_exception(future: "asyncio.Future[Result]", error: BaseException) -> None:
    if future.done():
        return
    error = readable(error)
    if isinstance(error, StopIteration):
        # Futures reject it: a coroutine would take it for its own end.
        error = RuntimeError(f"user code raised {error!r}").with_traceback(error.__traceback__)
    future.set_exception(error if isinstance(error, Exception) else as_exception(error))


Begin = Callable[[], Awaitable[Result]]
"""Begins a call that has all it needs, and waits for what it returns."""


class CallDropped(Exception):
    """Nobody wants the call any more."""


class StartSignal:
    """A call waits for it, in the thread that will run it. Made on the caller's loop.

    What has to be durable before a call begins is written while the call waits here, when nothing
    but that is missing: a call that is still without a thread, or a process, has left no trace.
    """

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
