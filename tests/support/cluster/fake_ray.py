"""Ray as far as a fleet uses it, in this process: actors whose processes do what a test says."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from holdfast.cluster.messages import ChildEnd, Order, Place, WorkerReport


class FakeRayError(Exception):
    pass


class FakeUnavailable(FakeRayError):
    pass


class FakeRemote:
    """`method.remote(…)`, which is awaited."""

    def __init__(self, function: Callable[..., Any]):
        self.remote = function


class FakeActor:
    """One process: it runs until `end`."""

    def __init__(self, number: int):
        self.orders: list[Order] = []
        self._place = Place(f"host-{number}", f"{number + 1:056x}", 1, "3", "2", "0")
        self._reports: list[bytes] = []
        self._change = asyncio.Condition()
        self._end: ChildEnd | None = None
        for name in ("place", "start", "send", "wait", "reports"):
            setattr(self, name, FakeRemote(getattr(self, f"_{name}_remote")))

    async def report(self, report: WorkerReport | bytes) -> None:
        async with self._change:
            is_line = isinstance(report, bytes)
            self._reports.append(report if is_line else msgspec.json.encode(report))
            self._change.notify_all()

    async def end(self, code: int = 1) -> None:
        async with self._change:
            self._end = ChildEnd(code, "/logs/worker", "")
            self._change.notify_all()

    async def _place_remote(self) -> bytes:
        return msgspec.json.encode(self._place)

    async def _start_remote(self, job: bytes) -> int:
        return 1

    async def _send_remote(self, body: bytes) -> bool:
        self.orders.append(msgspec.json.decode(body, type=Order))
        return True

    async def _wait_remote(self, seconds: float) -> bytes:
        async with self._change:
            await self._change.wait_for(lambda: self._end is not None)
            return msgspec.json.encode(self._end)

    async def _reports_remote(self, seen: int) -> list[bytes]:
        await asyncio.sleep(0)  # Also of an actor whose process has ended.
        async with self._change:
            await self._change.wait_for(lambda: len(self._reports) > seen or self._end is not None)
            return self._reports[seen:]


class FakeRay:
    """It has as many nodes as `nodes` says, with 4 CPUs each."""

    exceptions = SimpleNamespace(RayError=FakeRayError, ActorUnavailableError=FakeUnavailable)

    def __init__(self, nodes: int = 1):
        self.actors: list[FakeActor] = []
        self.killed: list[FakeActor] = []
        self._nodes = nodes

    def remote(self, kind: type) -> "FakeRay":
        return self

    def options(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(remote=self._make)

    def _make(self) -> FakeActor:
        self.actors.append(FakeActor(len(self.actors)))
        return self.actors[-1]

    def kill(self, actor: FakeActor) -> None:
        self.killed.append(actor)

    def nodes(self) -> list[dict[str, object]]:
        return [
            {"NodeID": f"{number + 1:056x}", "NodeManagerAddress": "", "Resources": {"CPU": 4.0},
             "Alive": True}
            for number in range(self._nodes)
        ]  # fmt: skip
