"""A process of a cluster reads its job and its orders, and sends its reports.

It ends at once when its actor is gone. Every acknowledged record is durable, so there is nothing to
save. Orders are read in their own thread, so that code which blocks the loop delays no reading.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.cluster.messages import Order, WorkerReport, line
from holdfast.journal.types import Worker

Job = TypeVar("Job")


class Child:
    """The process's link to its actor. Create it before anything else reads the standard input,
    because the job is the first line there."""

    def __init__(self, report: int):
        """`report` is the descriptor of the pipe for reports."""
        self._report = report
        os.set_inheritable(report, False)
        self._may_go = asyncio.Event()
        self._lock = threading.Lock()
        self._read = b""

    def job(self, kind: type[Job]) -> Job:
        return msgspec.json.decode(self._line(), type=kind)

    def _line(self) -> bytes:
        """Returns the next line of the standard input. At its end, this process exits.

        `sys.stdin` is not used, because Python cannot exit while a thread waits in it.
        """
        while b"\n" not in self._read:
            more = os.read(0, 65536)
            if not more:
                os._exit(os.EX_UNAVAILABLE)
            self._read += more
        first_line, _, self._read = self._read.partition(b"\n")
        return first_line

    def report(self, message: WorkerReport) -> None:
        with self._lock:
            os.write(self._report, line(message))

    def obey(self, handle: Callable[[Order], None]) -> None:
        """Starts to read orders, and calls `handle` in the running event loop with each order. From
        now on, this process exits when its actor is gone."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            while True:
                order = msgspec.json.decode(self._line(), type=Order)
                # The loop is closed, because the process is about to end.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._take, order, handle)

        threading.Thread(target=read, name="holdfast-orders", daemon=True).start()

    def _take(self, order: Order, handle: Callable[[Order], None]) -> None:
        if order.go:
            self._may_go.set()
        handle(order)

    async def joined(self, worker: Worker) -> None:
        """Reports that this process has joined the run, and waits until the driver orders it to
        begin. If the process dies later, the driver can give back its work at once."""
        self.report(WorkerReport(worker=worker))
        await self._may_go.wait()
