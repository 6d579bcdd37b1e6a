"""Processes of isolated tools, kept warm: an import per call would cost more than the call.

There is a pool per module. Each process runs one call at a time. A pool has at most `PROCESSES`;
a call that finds none free waits, which ends since every running call has a deadline. Idle ones
are ended after a while, all of them when the driver exits.
"""

import atexit
import contextlib
import os
import threading
import time
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from holdfast.rollout.threads.start_signal import CallDropped, StartSignal
from holdfast.rollout.tools.isolated.process import Process
from holdfast.rollout.tools.isolated.wire import Answer, FunctionHome, WorkerRequest

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
