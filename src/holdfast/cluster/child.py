"""A process of a cluster, seen from inside: its job, its orders, its reports.

It ends when its actor is gone, at once: every acknowledged record is durable, so there is nothing
to save. Orders are read in a thread of their own, so that code which blocks the loop hides none.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.cluster.messages import Order, WorkerReport, line
from holdfast.journal.journal import Worker

Job = TypeVar("Job")


class Child:
    """Make it before anything else: its job is the first line of the standard input."""

    def __init__(self, report: int):
        """`report`: the descriptor of the pipe for reports."""
        self._report = report
        os.set_inheritable(report, False)
        self._may_go = asyncio.Event()
        self._lock = threading.Lock()
        self._read = b""

    def job(self, kind: type[Job]) -> Job:
        return msgspec.json.decode(self._line(), type=kind)

    def _line(self) -> bytes:
        """The next line of the standard input; without one, this process ends.

        Not by `sys.stdin`: Python cannot end while a thread waits in it.
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
        """From now on: calls `handle` in this loop with each order, and ends with the actor."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            while True:
                order = msgspec.json.decode(self._line(), type=Order)
                with contextlib.suppress(RuntimeError):  # The loop is closed: it is about to end.
                    loop.call_soon_threadsafe(self._take, order, handle)

        threading.Thread(target=read, name="holdfast-orders", daemon=True).start()

    def _take(self, order: Order, handle: Callable[[Order], None]) -> None:
        if order.go:
            self._may_go.set()
        handle(order)

    async def joined(self, worker: Worker) -> None:
        """Reports that this process has joined, and returns when the driver knows it. If the
        process dies later, the driver can give back its work at once."""
        self.report(WorkerReport(worker=worker))
        await self._may_go.wait()
