"""Processes of isolated tools, kept warm: an import per call would cost more than the call.

There is a pool per module. Each process runs one call at a time. A pool has at most `PROCESSES`;
a call that finds none free waits, which ends since every running call has a deadline. Idle ones
are ended after a while, all of them when the driver exits.
"""

import asyncio
import atexit
import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.threads.mailbox import Begin, CallDropped, StartSignal, start_on_signal
from holdfast.rollout.threads.pool import DaemonThreads
from holdfast.rollout.tools.isolated.process import Process, RemoteTraceback
from holdfast.rollout.tools.isolated.wire import (
    Answer,
    Broken,
    FunctionHome,
    Refusal,
    WorkerRequest,
    WorkerResult,
)
from holdfast.rollout.tools.result import RaisedElsewhere

PROCESSES = max(8, os.cpu_count() or 1)
MAX_CALLS = 1_000
"""After as many, a process is replaced: leaks stay small."""
IDLE_SECONDS = 60.0
"""Seconds for which a process is kept without work."""


class CallCancelled(Exception):
    """Nobody waits for the call any more."""


class IsolatedCall:
    """One call: `run` blocks in a thread, `cancel` ends it from any other."""

    def __init__(self, request: WorkerRequest, timeout: float):
        self.is_cancelled = False
        self._request = request
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._process: Process | None = None

    def run(self, home: FunctionHome, start: StartSignal) -> Answer:
        """Waits for a process, then at the start, then for the answer."""
        pool = self._pool = _offices[-1].pool(home)
        process = pool.take(self)
        is_fit = False
        try:
            self._attach(process)
            process.get_ready()
            start.wait()
            answer = process.call(self._request, self._timeout)
            is_fit = self._detach()
            return answer
        except CallDropped:
            is_fit = self._detach()
            raise
        finally:
            pool.give_back(process, is_fit=is_fit)

    def cancel(self) -> None:
        """The process is killed before this returns."""
        with self._lock:
            self.is_cancelled = True
            if self._process is not None:
                self._process.kill()
        if self._pool is not None:
            self._pool.wake()

    def _attach(self, process: Process) -> None:
        with self._lock:
            if self.is_cancelled:
                raise CallCancelled
            self._process = process

    def _detach(self) -> bool:
        with self._lock:
            self._process = None
            return not self.is_cancelled


class Pool:
    """The processes of one module."""

    def __init__(self, home: FunctionHome, keeper: "ProcessStarter"):
        self._home = home
        self._keeper = keeper
        self._free = threading.Condition()
        self._idle: list[Process] = []
        self._busy = 0

    def take(self, call: IsolatedCall) -> Process:
        """A process that no other call has, or `CallCancelled`."""
        with self._free:
            self._free.wait_for(lambda: call.is_cancelled or self._idle or self._busy < PROCESSES)
            if call.is_cancelled:
                raise CallCancelled
            self._busy += 1
            process = self._idle.pop() if self._idle else None
        if process is not None and not process.has_ended():
            return process
        try:
            if process is not None:
                process.end()
            return self._keeper.start(self._home)
        except BaseException:
            self._leave(None)
            raise

    def give_back(self, process: Process, *, is_fit: bool) -> None:
        """Kept for the next call, or ended before its place is free."""
        if is_fit and process.calls < MAX_CALLS:
            process.idle_since = time.monotonic()
            self._leave(process)
            return
        try:
            process.end()
        finally:
            self._leave(None)

    def wake(self) -> None:
        with self._free:
            self._free.notify_all()

    def expire(self, before: float) -> bool:
        """Ends what has been idle since `before`; whether anything is left."""
        with self._free:
            old = [process for process in self._idle if process.idle_since <= before]
            self._idle = [process for process in self._idle if process not in old]
            is_used = bool(self._busy or self._idle)
        for process in old:
            process.end()
        return is_used

    def _leave(self, process: Process | None) -> None:
        with self._free:
            self._busy -= 1
            if process is not None:
                self._idle.append(process)
            self._free.notify()


class ProcessStarter:
    """The thread that starts all processes, since they die with the thread that started them."""

    def __init__(self, office: "PoolRegistry"):
        self._office = office
        self._requests: SimpleQueue[tuple[FunctionHome, Future[Process]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: list[Process] = []

    def start(self, home: FunctionHome) -> Process:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._keep, name="holdfast-isolated-tools", daemon=True
                )
                self._thread.start()
        future: Future[Process] = Future()
        self._requests.put((home, future))
        return future.result()

    def end_all(self) -> None:
        with self._lock:
            started, self._started = self._started, []
        for process in started:
            process.kill()
        for process in started:
            process.end()

    def _keep(self) -> None:
        is_used = False
        while True:
            with contextlib.suppress(Empty):
                self._start(*self._requests.get(timeout=IDLE_SECONDS / 4 if is_used else None))
            is_used = self._office.expire()

    def _start(self, home: FunctionHome, future: "Future[Process]") -> None:
        try:
            process = Process(home)
        except BaseException as error:
            future.set_exception(error)
            return
        with self._lock:
            self._started = [earlier for earlier in self._started if not earlier.is_gone] + [
                process
            ]
        future.set_result(process)


class PoolRegistry:
    """All pools of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[FunctionHome, Pool] = {}
        self._keeper = ProcessStarter(self)

    def pool(self, home: FunctionHome) -> Pool:
        with self._lock:
            if home not in self._pools:
                self._pools[home] = Pool(home, self._keeper)
            return self._pools[home]

    def expire(self) -> bool:
        """Ends what has been idle for too long; whether anything is left."""
        with self._lock:
            pools = list(self._pools.values())
        used = [pool.expire(time.monotonic() - IDLE_SECONDS) for pool in pools]
        return any(used)

    def close(self) -> None:
        self._keeper.end_all()


_offices = [PoolRegistry()]
"""The last is this process's own. Those before belong to the processes that forked it: their
workers are not its to use or to end, nor to be collected as its garbage."""


def _close() -> None:
    _offices[-1].close()


os.register_at_fork(after_in_child=lambda: _offices.append(PoolRegistry()))
atexit.register(_close)


_threads = DaemonThreads("isolated tool calls")
_imports: list[str] = []


class Isolated:
    """A module-level function that runs in a process of its own, which may die or hang alone.
    Nothing is started before a call.

    The process imports the function from its module by name; arguments travel as JSON, results as
    text. A call that is cancelled, or that runs into its deadline, has its process killed.
    """

    def __init__(self, function: Callable[..., object], tool: str):
        self._name, self._home = _locate(function, tool)

    @asynccontextmanager
    async def slot(
        self, arguments: dict[str, object], *, key: str | None, timeout: float
    ) -> "AsyncIterator[Begin[str]]":
        """A process that is there and ready; `timeout` counts from when the call begins."""
        if _imports:
            raise UsageError(
                f"{_imports[-1]} calls an isolated tool while it is imported: what it runs has to "
                'be under `if __name__ == "__main__":`'
            )
        written = msgspec.json.encode(arguments).decode()
        call = IsolatedCall(WorkerRequest(self._name, written, key), timeout)
        await _threads.room()
        start = StartSignal()
        async with start_on_signal(start, self._answer(call, start)) as running:

            async def begin() -> str:
                start.allow()
                return _text(await running)

            yield begin

    async def _answer(self, call: IsolatedCall, start: StartSignal) -> Answer:
        try:
            return await _threads.run(lambda: call.run(self._home, start))
        except asyncio.CancelledError:
            call.cancel()
            raise


def _text(answer: Answer) -> str:
    if isinstance(answer, WorkerResult):
        return answer.text
    if isinstance(answer, Refusal):
        raise _refusal(answer)
    assert isinstance(answer, Broken), "a process says once that it is ready"
    raise RaisedElsewhere(answer.kind, answer.message) from RemoteTraceback(answer.traceback)


@contextlib.contextmanager
def importing(home: FunctionHome) -> Iterator[None]:
    """While a worker imports a module, which must not start another that does the same."""
    _imports.append(home.file)
    try:
        yield
    finally:
        _imports.pop()


def _refusal(answer: Refusal) -> ToolSaysNo:
    """Under its own name, by which it is recorded, although its class is not known here."""
    if answer.kind == ToolSaysNo.__name__:
        return ToolSaysNo(answer.message)
    kind: type[ToolSaysNo] = type(answer.kind, (ToolSaysNo,), {})
    return kind(answer.message)


def _locate(function: Callable[..., object], tool: str) -> tuple[str, FunctionHome]:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not inspect.isfunction(function) or not name.isidentifier():
        raise UsageError(
            f"tool {tool}: {name} cannot be isolated, since another process has to import it; "
            "define it with `def` at the top level of a module"
        )
    # Not what `sys.modules` has under the module's name: that may be another.
    file = inspect.unwrap(function).__globals__.get("__file__")
    if not isinstance(file, str) or not os.path.exists(file):
        raise UsageError(
            f"tool {tool}: {name} cannot be isolated, since it is in no file that another process "
            "could import; put it into a module"
        )
    return name, FunctionHome(_module_name(function.__module__, file), os.path.abspath(file))


def _module_name(name: str, file: str) -> str:
    """By which it can be imported: a script is `__main__` in its own process alone."""
    if name != "__main__":
        return name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(file).stem
