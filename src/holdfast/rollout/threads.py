"""Running blocking user code without blocking the loop, and without ever waiting for it at exit.

Python cannot stop a thread. One that hangs is left behind (a daemon, so the process can still
end), is counted, and is bounded: with too many left behind, new work is refused loudly.
"""

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.containment import as_exception

MAX_ABANDONED = 64
IDLE_SECONDS = 1.0
Result = TypeVar("Result")


class DaemonThreads:
    """A thread for each call that is under way. Cancelling the await abandons the thread until its
    call ends by itself; one that is free takes the next call, and goes when none comes."""

    def __init__(self, what: str):
        self._what = what
        self._process = os.getpid()
        self._free: deque[_Worker] = deque()
        self._abandoned: set[_Worker] = set()

    async def run(self, function: Callable[[], Result]) -> Result:
        self._abandoned = {worker for worker in self._abandoned if worker.is_busy}
        if len(self._abandoned) >= MAX_ABANDONED:
            raise EnvironmentBroken(
                f"{len(self._abandoned)} {self._what} are still hanging; no more are started"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        mailbox, context = mailbox_of(loop), contextvars.copy_context()

        def work() -> None:
            try:
                result = context.run(function)
            except BaseException as error:
                mailbox.post(set_exception, future, error)
            else:
                mailbox.post(set_result, future, result)

        worker = self._worker()
        worker.do(work)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandoned.add(worker)
            raise

    def _worker(self) -> "_Worker":
        if self._process != os.getpid():
            # A fork has none of the threads of the process that it came from.
            self._process, self._free, self._abandoned = os.getpid(), deque(), set()
        try:
            return self._free.pop()
        except IndexError:
            return _Worker(f"holdfast-{self._what}", self._free)


class _Worker:
    """One thread. Whoever takes it out of `free` gives it the next call."""

    def __init__(self, name: str, free: "deque[_Worker]"):
        self.is_busy = False
        self._free = free
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def do(self, call: Callable[[], None]) -> None:
        self.is_busy = True
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._free.remove(self)
                except ValueError:
                    continue  # It was taken at this moment: its call is coming.
                return
            call()
            del call  # It holds what the user's function and its result hold.
            self.is_busy = False
            self._free.append(self)


class _Mailbox:
    """What threads have to tell one loop. However many tell it something before it looks, it is
    woken once."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._letters: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_called = False

    def post(self, callback: Callable[..., None], *args: object) -> None:
        self._letters.append((callback, args))
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # First: what is posted from now on calls again.
        while self._letters:
            callback, args = self._letters.popleft()
            callback(*args)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox]" = (
    weakref.WeakKeyDictionary()
)


def mailbox_of(loop: asyncio.AbstractEventLoop) -> _Mailbox:
    """Asked for on the loop itself; posted to from anywhere."""
    if loop not in _mailboxes:
        _mailboxes[loop] = _Mailbox(loop)
    return _mailboxes[loop]


def set_result(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():
        future.set_result(result)


def set_exception(future: "asyncio.Future[Result]", error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):
        # Refused by futures, since a coroutine could not tell it from its own end.
        error = RuntimeError(f"user code raised {error!r}").with_traceback(error.__traceback__)
    future.set_exception(error if isinstance(error, Exception) else as_exception(error))
