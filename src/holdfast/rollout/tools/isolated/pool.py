"""Keeps processes of isolated tools for later calls, because an import takes longer than most
calls.

Each module has a pool of at most `PROCESSES` processes. Each process runs one call at a time. A
call waits until a process is free, which takes a limited time, since every running call has a
deadline. Idle processes are ended after a while, and all processes when the driver exits.
"""

import asyncio
import atexit
import inspect
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.processes.frames import FunctionHome
from holdfast.rollout.processes.user_module import file_in_import
from holdfast.rollout.threads.mailbox import Begin, StartSignal, on_loop, start_on_signal
from holdfast.rollout.tools.isolated.process import Process, RemoteTraceback
from holdfast.rollout.tools.isolated.wire import (
    Answer,
    Broken,
    Refusal,
    WorkerRequest,
    WorkerResult,
)
from holdfast.rollout.tools.result import RaisedElsewhere

PROCESSES = max(8, os.cpu_count() or 1)
MAX_CALLS = 1_000
"""The number of calls after which a process is replaced, so that memory leaks stay small."""
IDLE_SECONDS = 60.0
"""How many seconds an idle process is kept."""


class Pool:
    """The processes of one module."""

    def __init__(self, home: FunctionHome, office: "Office"):
        self._home = home
        self._office = office
        self._places = asyncio.Semaphore(PROCESSES)
        self._idle: list[Process] = []

    async def run(self, request: WorkerRequest, timeout: float, start: StartSignal) -> Answer:
        """Waits for a process and for the start signal, then makes the call and returns its
        answer. If the caller is cancelled during the call, the process has ended when this
        function ends."""
        async with self._places:
            process = await self._take()
            is_fit = False
            try:
                await process.get_ready()
                is_fit = True
                await start.wait_on_loop()
                is_fit = False
                answer = await process.call(request, timeout)
                is_fit = True
                return answer
            finally:
                await self._give_back(process, is_fit=is_fit)

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if not process.child.has_ended():
                return process
            await process.end()
        return self._office.start(self._home)

    async def _give_back(self, process: Process, *, is_fit: bool) -> None:
        """Keeps the process for the next call if `is_fit`. Otherwise ends the process."""
        if is_fit and process.calls < MAX_CALLS:
            process.idle_since = time.monotonic()
            self._idle.append(process)
        else:
            await process.end()

    def expired(self, before: float) -> list[Process]:
        """Removes and returns the processes that have been idle since `before`."""
        old = [process for process in self._idle if process.idle_since <= before]
        self._idle = [process for process in self._idle if process not in old]
        return old


class Office:
    """All pools of this process. They run on the loop of a separate thread that never ends, because
    a tool process dies with the thread that started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: dict[FunctionHome, Pool] = {}
        self._started: list[Process] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(
        self, home: FunctionHome, request: WorkerRequest, timeout: float, start: StartSignal
    ) -> Answer:
        """Runs a call. May be called on any loop."""
        return await on_loop(self.loop(), lambda: self._pool(home).run(request, timeout, start))

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "holdfast-isolated-tools"
                threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()
            return self._loop

    def close(self) -> None:
        """Ends all processes. May be called from any thread, and while the interpreter exits."""
        started, self._started = self._started, []
        for process in started:
            process.child.kill()
        for process in started:
            process.child.end()

    # --- on its loop

    def _pool(self, home: FunctionHome) -> Pool:
        return self._pools.setdefault(home, Pool(home, self))

    def start(self, home: FunctionHome) -> Process:
        process = Process(home)
        alive = [earlier for earlier in self._started if not earlier.child.is_gone]
        self._started = [*alive, process]
        self._end_idle()
        return process

    def _end_idle(self) -> None:
        """Ends the processes that have been idle for too long. Schedules the next check if any
        process is left."""
        if self._timer is not None:
            self._timer.cancel()
        loop, before = asyncio.get_running_loop(), time.monotonic() - IDLE_SECONDS
        for process in [old for pool in self._pools.values() for old in pool.expired(before)]:
            task = loop.create_task(process.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if any(not process.child.is_gone for process in self._started):
            self._timer = loop.call_later(IDLE_SECONDS / 4, self._end_idle)


_offices = [Office()]
"""The last office belongs to this process. Earlier offices were inherited in a fork and belong to
the parent processes. This process must neither use nor end the workers of the earlier offices. The
list keeps these offices from being garbage-collected."""

os.register_at_fork(after_in_child=lambda: _offices.append(Office()))
atexit.register(lambda: _offices[-1].close())


class Isolated:
    """A module-level function that runs in a separate process, so that a crash or a hang of the
    function does not harm this process. Processes start at the first call.

    The process imports the function from its module by name. Arguments travel as JSON, results as
    text. If a call is cancelled or reaches its deadline, its process is killed.
    """

    def __init__(self, function: Callable[..., object], tool: str):
        self._name, self._home = _locate(function, tool)

    @asynccontextmanager
    async def slot(
        self, arguments: dict[str, object], *, key: str | None, timeout: float
    ) -> "AsyncIterator[Begin[str]]":
        """Reserves a process that has imported the function. Yields an async function that makes
        the call. `timeout` counts from the beginning of the call."""
        if (importing := file_in_import()) is not None:
            raise UsageError(
                f"{importing} calls an isolated tool while it is imported: what it runs has to "
                'be under `if __name__ == "__main__":`'
            )
        written = msgspec.json.encode(arguments).decode()
        request = WorkerRequest(self._name, written, key)
        start = StartSignal()
        answer = _offices[-1].run(self._home, request, timeout, start)
        async with start_on_signal(start, answer) as running:

            async def begin() -> str:
                start.allow()
                return _text(await running)

            yield begin


def _text(answer: Answer) -> str:
    if isinstance(answer, WorkerResult):
        return answer.text
    if isinstance(answer, Refusal):
        raise _refusal(answer)
    assert isinstance(answer, Broken), "a process says once that it is ready"
    raise RaisedElsewhere(answer.kind, answer.message) from RemoteTraceback(answer.traceback)


def _refusal(answer: Refusal) -> ToolSaysNo:
    """Returns a `ToolSaysNo` for the refusal. Its class has the same name as in the other process,
    because that name is recorded."""
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
    # Not taken from `sys.modules`, which may have another module under this name.
    file = inspect.unwrap(function).__globals__.get("__file__")
    if not isinstance(file, str) or not os.path.exists(file):
        raise UsageError(
            f"tool {tool}: {name} cannot be isolated, since it is in no file that another process "
            "could import; put it into a module"
        )
    return name, FunctionHome(_module_name(function.__module__, file), os.path.abspath(file))


def _module_name(name: str, file: str) -> str:
    """Returns the name by which another process can import the module, also if the module is this
    process's `__main__`."""
    if name != "__main__":
        return name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(file).stem
