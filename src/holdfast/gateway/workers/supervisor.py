"""Starts the workers that serve one address, and watches over them.

The supervisor holds the listening socket, which every worker inherits. While a worker is restarted,
connections wait at the socket instead of being refused. A worker that a signal ended is restarted,
a bounded number of times. A worker that exited by itself has reported its reason, and is not
restarted. Workers never outlive their supervisor: each holds the other end of a pipe that closes
with the supervisor, and on Linux the kernel also ends them.
"""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.records.errors import HoldfastError
from holdfast.rollout.processes.user_process import tie

MAX_RESTARTS, RESTART_WINDOW_SECONDS = 5, 60.0
"""The most restarts of one worker, and the seconds within which they are counted."""
RESTART_PAUSE_SECONDS = 0.2


class WorkerLost(HoldfastError):
    """A worker was killed too many times."""


class WorkerEnded(Struct, frozen=True):
    index: int
    code: int


class WorkerSupervisor:
    """Runs the workers. Use it once: `work` returns when all workers have ended."""

    def __init__(
        self,
        command: Sequence[str],
        message: Callable[[int], bytes],
        *,
        count: int,
        inherited: Sequence[int],
        notify: Callable[[str], None],
        grace: float,
    ):
        """`command` is the command of each worker. `message` returns what a worker reads from its
        standard input, and the worker then watches this input for its end. `grace` is the number of
        seconds that all workers have after `stop`. `notify` prints a line for the user."""
        self._command = command
        self._message = message
        self._count = count
        self._inherited = tuple(inherited)
        self._report = notify
        self._grace = grace
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def work(self) -> list[WorkerEnded]:
        """Runs the workers. Returns how each one ended, in the order in which they ended. No worker
        is left when this method ends, even by an error."""
        ended: list[WorkerEnded] = []
        reaper = asyncio.create_task(self._end_in_time(), name="end workers in time")
        keepers = [
            asyncio.create_task(self._keep(index, ended), name=f"keep worker {index}")
            for index in range(self._count)
        ]
        try:
            await asyncio.gather(*keepers)
        finally:
            self._stopping.set()
            self.kill()
            await asyncio.gather(*keepers, return_exceptions=True)
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)
        return ended

    def stop(self) -> None:
        """Lets all workers finish what is in flight, and then end."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGKILL)

    @property
    def pids(self) -> dict[int, int]:
        return {index: process.pid for index, process in self._processes.items()}

    def _signal(self, number: int) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _end_in_time(self) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._grace)
        self._report("workers that did not finish in time are ended")
        self._signal(signal.SIGKILL)

    async def _keep(self, index: int, ended: list[WorkerEnded]) -> None:
        starts: deque[float] = deque(maxlen=MAX_RESTARTS)
        while not self._stopping.is_set():
            code = await self._run(index)
            if code >= 0 or self._stopping.is_set():
                ended.append(WorkerEnded(index, code))
                if code > 0:
                    # The other workers will fail in the same way, and this worker's share would
                    # stay undone.
                    self.stop()
                return
            name, now = signal.Signals(-code).name, time.monotonic()
            if len(starts) == MAX_RESTARTS and now - starts[0] < RESTART_WINDOW_SECONDS:
                self.stop()
                raise WorkerLost(f"worker {index} was ended by {name} {MAX_RESTARTS + 1} times")
            starts.append(now)
            self._report(f"worker {index} was ended by {name}; it is started again")
            await asyncio.sleep(RESTART_PAUSE_SECONDS)

    async def _run(self, index: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *tie(),
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=self._inherited,
            # The supervisor passes a terminal's signals on, once.
            start_new_session=True,
        )
        self._processes[index] = process
        assert process.stdin is not None, "it is a pipe"
        process.stdin.write(self._message(index))
        try:
            return await process.wait()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        finally:
            del self._processes[index]
            process.stdin.close()


def end_with_supervisor() -> None:
    """Ends a worker at once when its supervisor is gone, which closes the worker's standard input.
    Every acknowledged record is durable, so no data is lost."""
    asyncio.get_running_loop().add_reader(0, os._exit, os.EX_UNAVAILABLE)
