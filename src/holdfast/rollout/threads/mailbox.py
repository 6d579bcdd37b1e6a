"""Mailboxes: how threads report to an event loop."""

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.records.failure import as_exception
from holdfast.records.foreign import readable

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
