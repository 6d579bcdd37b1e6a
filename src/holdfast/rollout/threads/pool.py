"""Runs blocking user code without blocking the loop, and without waiting for it at exit.

Python cannot stop a thread. A thread that hangs is left behind. It is a daemon thread, so the
process can still end. If too many threads hang, new calls are refused with an error.
"""

import asyncio
import contextvars
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.records.errors import ThreadsHang
from holdfast.rollout.threads.contain import finishes_in_time
from holdfast.rollout.threads.mailbox import (
    Begin,
    CallDropped,
    Mailbox,
    StartSignal,
    mailbox_of,
    set_exception,
    set_result,
    start_on_signal,
)

MAX_ABANDONED = 64
HANGING_SECONDS = 60.0
"""How long a new call waits while `MAX_ABANDONED` calls hang, before it is refused."""
POLL_SECONDS = 0.1
IDLE_SECONDS = 1.0
PATIENCE_SECONDS = 0.01
"""How many seconds calls wait for a busy thread before more threads start."""
MAX_ADMITTED = 4
"""The most calls of one loop that are about to begin at the same time. They are enough to share a
commit, and so few that a kill finds hardly any calls that are recorded and have not begun."""
MAX_PATIENCE_SECONDS = 0.1
"""How many seconds calls wait for a busy thread while the event loop itself is late."""
Result = TypeVar("Result")


class StillRunning(Exception):
    """A call did not end in time. Its thread keeps running it."""


class DaemonThreads:
    """Runs blocking calls in daemon threads. If the await of a call is cancelled, the call runs on
    in its thread, and its result is ignored.

    Slow calls do not hold up other calls: as long as no call ends, the number of threads doubles
    after each short wait. Short calls, of which there may be thousands, share one thread, because
    threads that compete for the interpreter's lock take longer than the calls. An idle thread ends
    after a while.
    """

    def __init__(self, what: str):
        self._what = what
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._line = _Line(f"holdfast-{self._what}")
        self._abandoned: set[_Call] = set()

    async def room(self) -> None:
        """Waits until fewer than `MAX_ABANDONED` calls hang. Raises `ThreadsHang` if this takes too
        long."""
        end = time.monotonic() + HANGING_SECONDS
        while self._hanging() >= MAX_ABANDONED:
            if time.monotonic() >= end:
                raise self._refusal()
            await asyncio.sleep(POLL_SECONDS)

    def _hanging(self) -> int:
        if self._process != os.getpid():
            self._forget()  # A forked process has none of its parent's threads.
        if self._abandoned:
            self._abandoned = {call for call in self._abandoned if call.is_running}
        return len(self._abandoned)

    def _refusal(self) -> ThreadsHang:
        return ThreadsHang(
            f"{len(self._abandoned)} {self._what} still hang, past their timeouts, and no more are "
            "made; give what they wait for a timeout (`requests.get(…, timeout=30)`), and go on"
        )

    @asynccontextmanager
    async def slot(self, function: Callable[[], Result]) -> "AsyncIterator[Begin[Result]]":
        """Reserves a thread for the function. Yields an async function that runs it and returns its
        result."""
        await self.room()
        async with Admission() as admission:
            start = StartSignal(on_begin=admission.end)
            async with start_on_signal(start, self.run(function, start=start)) as running:

                async def begin() -> Result:
                    start.allow()
                    return await running

                yield begin

    async def run(
        self,
        function: Callable[[], Result],
        *,
        left: Callable[[], float] | None = None,
        start: StartSignal | None = None,
    ) -> Result:
        """Runs the function in a thread, and returns its result or raises its error.

        `left` returns the seconds that are left. When none are left, raises `StillRunning`. With
        `start`, the thread waits for this signal before it runs the function.
        """
        if self._hanging() >= MAX_ABANDONED:
            raise self._refusal()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        call = _Call(function, future, mailbox_of(loop), start)
        self._line.join(call, loop, hanging=len(self._abandoned))
        try:
            if left is not None and not await finishes_in_time(future, left):
                raise StillRunning
            return await future
        except (asyncio.CancelledError, StillRunning):
            future.cancel()
            call.is_awaited = False
            self._abandoned.add(call)
            raise


class Admission:
    """A limit on the calls of a loop that are about to begin, in a thread or on the loop. A call
    that has begun no longer counts."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._places = _admitted.setdefault(loop, asyncio.Semaphore(MAX_ADMITTED))
        self._is_held = False

    async def __aenter__(self) -> "Admission":
        await self._places.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._places.release()


@asynccontextmanager
async def begin_soon(call: "Begin[Result]") -> "AsyncIterator[Begin[Result]]":
    """Waits until `call` is one of the few calls that may begin next on this loop. Yields a
    function that begins the call."""
    async with Admission() as admission:

        async def begin() -> Result:
            admission.end()
            return await call()

        yield begin


_admitted: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = (
    weakref.WeakKeyDictionary()
)


class _Call:
    """A call: its function, the future on which its caller waits, and whether it still runs."""

    __slots__ = (
        "_context",
        "_function",
        "_future",
        "_mailbox",
        "is_awaited",
        "is_running",
        "since",
        "start",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[[], Result],
        future: "asyncio.Future[Result]",
        mailbox: Mailbox,
        start: StartSignal | None,
    ):
        self._function = function
        self._future = future
        self._mailbox = mailbox
        self._context = contextvars.copy_context()
        self.start = start
        self.since = time.monotonic()
        self.is_awaited = True
        self.is_running = True
        """True until the call has ended, or was skipped because its caller is gone."""

    def wait_for_start(self) -> None:
        """Waits for the call's start signal, if it has one."""
        if self.start is None or not self.is_awaited:
            return
        try:
            self._context = self.start.wait()
        except CallDropped:
            self.is_awaited = False

    def do(self) -> None:
        if self.is_awaited:
            try:
                result = self._context.run(self._function)
            except BaseException as error:
                self._mailbox.post(set_exception, self._future, error)
            else:
                self._mailbox.post(set_result, self._future, result)
        self.is_running = False


class _Line:
    """The queue of waiting calls, and the threads that run them."""

    def __init__(self, name: str):
        self._name = name
        self._waiting: deque[_Call] = deque()
        self._free: deque[queue.SimpleQueue[None]] = deque()
        """The bells of the threads that wait for work. To wake a thread, the code takes its bell
        out and puts None into it."""
        self._threads = 0
        self._ended = 0
        """The number of calls that have ever ended, which shows progress."""
        self._counting = threading.Lock()
        self._watched_by: asyncio.AbstractEventLoop | None = None

    def join(self, call: _Call, loop: asyncio.AbstractEventLoop, *, hanging: int) -> None:
        self._waiting.append(call)
        # A call with a start signal waits for more than a free thread, so it gets its own thread.
        if call.start is not None or len(self._free) + hanging >= self._threads:
            self._more(1)
        self._watch(loop)

    def _more(self, count: int) -> None:
        for _ in range(count):
            try:
                self._free.pop().put(None)
            except IndexError:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                with self._counting:
                    self._threads += 1

    # --- on the caller's loop

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        # The watch of another loop does not count, because that loop may have ended.
        if self._watched_by is not loop:
            self._watched_by = loop
            due = loop.time() + PATIENCE_SECONDS
            loop.call_at(due, self._look, loop, due, self._ended)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float, ended: int) -> None:
        """Starts more threads if the present threads make no progress. Calls itself again as long
        as calls wait."""
        self._watched_by = None
        try:
            waited = time.monotonic() - self._waiting[0].since
        except IndexError:
            return
        if self._ended == ended:
            self._more(min(len(self._waiting), max(1, self._threads)))
        elif loop.time() - due < PATIENCE_SECONDS or waited > MAX_PATIENCE_SECONDS:
            # If the loop is late, it waits for the interpreter's lock. Another thread would wait
            # for it, too.
            self._more(1)
        self._watch(loop)

    # --- in a thread

    def _work(self) -> None:
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        while self._waiting or self._is_called(bell):
            try:
                call = self._waiting.popleft()
            except IndexError:
                continue  # Another thread has taken it.
            call.wait_for_start()
            call.do()
            del call  # Releases the function and its result, which the call holds.
            self._ended += 1

    def _is_called(self, bell: "queue.SimpleQueue[None]") -> bool:
        """Waits for a new call. Returns False if none came for a while, which ends the thread."""
        self._free.append(bell)
        if self._waiting and self._takes_back(bell):
            return True  # A call came just now, when no thread seemed free.
        try:
            bell.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            if self._takes_back(bell):
                with self._counting:
                    self._threads -= 1
                return False
            bell.get()  # The call was taken just now.
        return True

    def _takes_back(self, bell: "queue.SimpleQueue[None]") -> bool:
        try:
            self._free.remove(bell)
        except ValueError:
            return False
        return True
