"""Runs one process of the fleet from its start to its end, on the driver's side.

The fleet replaces a lost process; a `FleetMember` never starts its process again. The driver ends
the process's lease in the journal at once only if the process is known to be gone: its actor's
node, the driver's machine or Ray's control plane must report that.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cluster.host_actor import ProcessHost
from holdfast.cluster.messages import ChildEnd, Order, Place, ProcessJob, WorkerReport, line
from holdfast.journal.types import Worker

WAIT_SECONDS = 30.0
AGAIN_SECONDS = 0.5


class HowEnded(StrEnum):
    DONE = "done"
    """The process ended without an error, for example because no work was left."""
    REFUSED = "refused"
    """The process reported that it cannot work on the run. Another try would fail in the same
    way."""
    STOPPED = "stopped"
    """An error ended the process, and other processes would meet the same error."""
    LOST = "lost"
    """The process died, or lost the journal. Another process takes its place."""


class MemberEnd(Struct, frozen=True):
    how: HowEnded
    message: str = ""
    place: Place | None = None
    code: int | None = None


class Resources(Struct, frozen=True):
    """The CPUs and GPUs that one process takes of its node."""

    cpus: float = 1.0
    gpus: float = 0.0


class FleetMember:
    """A process of the fleet, with its actor."""

    def __init__(
        self,
        ray: Any,
        job: ProcessJob,
        *,
        resources: Resources,
        strategy: object,
        node: str = "",
        on_report: Callable[[WorkerReport, "FleetMember"], Awaitable[None]] | None = None,
    ):
        self._ray = ray
        self.job = job
        self._on_report = on_report
        self.node = node
        """Ray's id of the node on which it must run, or "" for any node."""
        self.place: Place | None = None
        self.worker: Worker | None = None
        self.listens: WorkerReport | None = None
        self.pid = 0
        self.log = ""
        self.cpu = 0.0
        self._refused = ""
        self._fatal: WorkerReport | None = None
        self._seen = 0
        self._actor = (
            ray.remote(ProcessHost)
            .options(
                num_cpus=resources.cpus,
                num_gpus=resources.gpus,
                max_restarts=0,
                max_concurrency=8,
                scheduling_strategy=strategy,
            )
            .remote()
        )

    async def work(self) -> MemberEnd:
        """Starts the process, watches it, and returns how it ended. Its actor is gone afterwards.

        If reading the reports fails, raises the error at once, because the process would otherwise
        wait for work for ever. In this case, its work is released only when its lease ends.
        """
        try:
            self.place = msgspec.json.decode(await self._actor.place.remote(), type=Place)
            self.pid = await self._actor.start.remote(msgspec.json.encode(self.job))
            end = await self._wait_and_read()
            await self._read_last()
            return self._judged(end)
        except self._ray.exceptions.RayError as error:
            return MemberEnd(HowEnded.LOST, _first_line(error), self.place)
        finally:
            self.kill()

    async def send(self, order: Order) -> None:
        """Sends an order. If the process is gone, the order is dropped; its end is noticed
        elsewhere."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            await self._actor.send.remote(line(order))

    def kill(self) -> None:
        """Ends the actor at once, and its process with it."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    async def _wait_and_read(self) -> ChildEnd:
        waiting = asyncio.create_task(self._wait(), name="the end of a process")
        reading = asyncio.create_task(self._read_reports(), name="reports of a process")
        try:
            await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()  # Raises the error. Without an error, the actor was lost.
            return await waiting
        finally:
            for task in (waiting, reading):
                task.cancel()
            await asyncio.gather(waiting, reading, return_exceptions=True)

    async def _wait(self) -> ChildEnd:
        while True:
            try:
                if ended := await self._actor.wait.remote(WAIT_SECONDS):
                    return msgspec.json.decode(ended, type=ChildEnd)
            except self._ray.exceptions.ActorUnavailableError:
                # The actor may still live: the network may come back, or Ray will report the actor
                # dead.
                await asyncio.sleep(AGAIN_SECONDS)

    async def _read_reports(self) -> None:
        while True:
            try:
                await self._take(await self._actor.reports.remote(self._seen))
            except self._ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(AGAIN_SECONDS)
            except self._ray.exceptions.RayError:
                return

    async def _read_last(self) -> None:
        await self._take(await self._actor.reports.remote(self._seen))

    async def _take(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._seen += 1
            report = msgspec.json.decode(body, type=WorkerReport)
            self._refused = report.refused or self._refused
            if report.fatal:
                self._fatal = report
            if report.port or report.url:
                self.listens = report
            if report.worker is not None:
                self.worker = report.worker
                # From now on, its work can be freed, so it may begin.
                await self.send(Order(go=True))
            if self._on_report is not None:
                await self._on_report(report, self)

    def _judged(self, end: ChildEnd) -> MemberEnd:
        self.log, self.cpu = end.log, end.cpu
        if self._refused:
            return MemberEnd(HowEnded.REFUSED, self._refused, self.place, end.code)
        if end.code == 0:
            return MemberEnd(HowEnded.DONE, "", self.place, 0)
        if self._fatal is not None and not self._fatal.again:
            return MemberEnd(HowEnded.STOPPED, self._fatal.message, self.place, end.code)
        why = self._fatal.message if self._fatal is not None else _last_line(end)
        return MemberEnd(HowEnded.LOST, why, self.place, end.code)


def _last_line(end: ChildEnd) -> str:
    lines = [text for text in end.tail.splitlines() if text.strip()]
    how = f"exit code {end.code}" if end.code >= 0 else f"signal {-end.code}"
    return f"{how}{f': {lines[-1]:.300}' if lines else ''}"


def _first_line(error: Exception) -> str:
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__
