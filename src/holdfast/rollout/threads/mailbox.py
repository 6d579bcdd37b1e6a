"""Lets threads post callbacks to an event loop, and runs work on the loop of another thread.

- `Mailbox`: the callbacks that threads post to a loop.
- `on_loop`: runs work on the loop of another thread.
- `StartSignal`: makes a call wait in its thread until it may start.
"""

import asyncio
import contextlib
import contextvars
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.records.failure import as_exception
from holdfast.records.foreign import readable
from holdfast.rollout.threads.contain import end_task, to_its_end

Result = TypeVar("Result")


class Mailbox:
    """The callbacks that threads post to a loop. The loop is woken only once for all callbacks that
    wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._callbacks: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_called = False

    def post(self, callback: Callable[..., None], *args: object) -> None:
        self._callbacks.append((callback, args))
        if not self._is_called:
            self._is_called = True
            # The loop is closed, and nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # Cleared first, so that later posts schedule another call.
        while self._callbacks:
            callback, args = self._callbacks.popleft()
            callback(*args)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = (
    weakref.WeakKeyDictionary()
)


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Returns the loop's mailbox. Call this function on the loop itself. Any thread may post to the
    mailbox."""
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
        # A future rejects StopIteration, because a coroutine would take it for its own end.
        error = RuntimeError(f"user code raised {error!r}").with_traceback(error.__traceback__)
    future.set_exception(error if isinstance(error, Exception) else as_exception(error))


async def on_loop(
    loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[object, object, Result]]
) -> Result:
    """Runs `work` on the loop of another thread and returns its result. If the caller is cancelled,
    the work is cancelled, too, and has ended when this function ends."""
    here = asyncio.get_running_loop()
    mailbox, ended = mailbox_of(here), here.create_future()
    tasks: list[asyncio.Task[Result]] = []

    def report(task: "asyncio.Task[Result]") -> None:
        _ = task.cancelled() or task.exception()
        mailbox.post(set_result, ended, None)

    def begin() -> None:
        tasks.append(loop.create_task(work()))
        tasks[0].add_done_callback(report)

    loop.call_soon_threadsafe(begin)
    try:
        await asyncio.wait({ended})
    except asyncio.CancelledError:
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        await to_its_end(ended)
        raise
    return tasks[0].result()


Begin = Callable[[], Awaitable[Result]]
"""Begins a call that has reserved everything that it needs, and returns its result."""


class CallDropped(Exception):
    """Raised in a waiting call that its caller no longer wants."""


class StartSignal:
    """A signal for which a call waits in the thread that will run it. Create it on the caller's
    loop.

    Some records must be durable before a call begins. They are written while the call waits for
    this signal, when the call has already got its thread or process. So a call that is still
    waiting for a thread or process has recorded nothing. The loop calls `on_begin` when the call's
    thread has woken.
    """

    def __init__(self, on_begin: Callable[[], None] = lambda: None) -> None:
        loop = asyncio.get_running_loop()
        self._mailbox = mailbox_of(loop)
        self._on_begin = on_begin
        self.reached: asyncio.Future[None] = loop.create_future()
        """Done when the call waits for its signal."""
        self._context: Future[contextvars.Context | None] = Future()

    def allow(self) -> None:
        """Lets the call begin. It runs in a copy of the caller's present context."""
        self._context.set_result(contextvars.copy_context())

    def drop(self) -> None:
        """Makes a waiting call raise `CallDropped`. Has no effect on a call that has begun."""
        with contextlib.suppress(InvalidStateError):
            self._context.set_result(None)

    def wait(self) -> contextvars.Context:
        """Blocks the call's thread until the call may begin. Returns the context in which to run
        the call. Raises `CallDropped` if the call was dropped."""
        self._mailbox.post(set_result, self.reached, None)
        context = self._context.result()
        if context is None:
            raise CallDropped
        self._mailbox.post(self._on_begin)
        return context

    async def wait_on_loop(self) -> None:
        """Waits as `wait` does, but on an event loop, without blocking a thread."""
        self._mailbox.post(set_result, self.reached, None)
        if await asyncio.wrap_future(self._context) is None:
            raise CallDropped


@asynccontextmanager
async def start_on_signal(
    start: StartSignal, call: "Coroutine[object, object, Result]"
) -> "AsyncIterator[asyncio.Task[Result]]":
    """Yields a task that runs `call`, once the call waits for its signal. Raises the call's error
    if it fails before that. At the end of the block, the call is cancelled if it is not done."""
    running = asyncio.create_task(call)
    try:
        await asyncio.wait((running, start.reached), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield running
    finally:
        start.drop()
        await end_task(running)
