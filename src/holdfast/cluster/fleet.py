"""A fleet has the processes of one kind, as many as the queue needs, spread over the nodes. A
process that is lost is replaced.

Nobody decides which trajectory runs where: each worker leases groups from the journal, and ends
when it finds none for a while. The fleet only looks how many trajectories are open, and starts the
missing processes.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec import Struct

from holdfast.cluster.connection import ray_calls
from holdfast.cluster.member import FleetMember, HowEnded, MemberEnd, Resources
from holdfast.cluster.messages import Order, Place, ProcessJob, WorkerReport
from holdfast.cluster.nodes import Node, live_nodes
from holdfast.records.errors import HoldfastError

LOOK_SECONDS = 1.0
RESTART_SECONDS = 0.5
MAX_RESTART_SECONDS = 10.0
MAX_LOSSES = 20
"""The number of processes, in addition to the number of workers, that may be lost in a row while no
trajectory settles."""


class WorkerRefused(HoldfastError):
    """Raised when a process reports that it cannot work on the run."""


class WorkersLost(HoldfastError):
    """Raised when workers die again and again without progress."""


class WorkerStopped(HoldfastError):
    """Raised when a worker met an error that every other worker would meet, too."""


class FleetSize(Struct, frozen=True):
    """The number of processes for a number of open trajectories."""

    most: int | None
    """The largest number of processes. None means as many as fit on the nodes."""
    each: int = 1
    """The number of trajectories that one process works on at once. Used only if `most` is None."""

    def wanted(self, open_: int, *, room: int) -> int:
        if self.most is not None:
            return min(self.most, max(1, open_))
        return max(1, min(room, math.ceil(open_ / self.each)))


class Fleet:
    """Starts and watches processes. Call `grow` whenever processes may be missing, then `stop`. A
    fleet is used once.

    `error` holds the error that ends the fleet: a process that cannot work, too many lost
    processes, or an error from `on_gone`, `on_report` or the watching of a process. After such an
    error, the fleet starts no process.
    """

    def __init__(
        self,
        ray: Any,
        job: Callable[[], ProcessJob],
        *,
        what: str,
        resources: Resources,
        notify: Callable[[str], None],
        on_gone: Callable[[FleetMember, MemberEnd], Awaitable[None]],
        on_report: Callable[[WorkerReport, FleetMember], Awaitable[None]] | None = None,
        off_gpu_nodes: bool = False,
        one_per_node: bool = False,
    ):
        self._ray = ray
        self._job = job
        self._what = what
        self._resources = resources
        self._notify = notify
        self._on_gone = on_gone
        self._on_report = on_report
        self._off_gpu_nodes = off_gpu_nodes
        self._one_per_node = one_per_node
        self._members: dict[asyncio.Task[None], FleetMember] = {}
        self._losses = 0
        self._not_before = 0.0
        self._started = 0
        self.is_stopping = False
        self.error: BaseException | None = None

    @property
    def members(self) -> list[FleetMember]:
        return list(self._members.values())

    @property
    def places(self) -> list[Place]:
        return [member.place for member in self.members if member.place is not None]

    def progressed(self) -> None:
        """Notes that work got done, so that earlier losses no longer count."""
        self._losses = 0

    async def room(self) -> int:
        """Returns how many processes fit onto the nodes that the fleet may use."""
        nodes = await self._nodes()
        cpus, gpus = self._resources.cpus, self._resources.gpus
        by_cpu = sum(int(node.cpus // cpus) for node in nodes) if cpus else 2**31
        by_gpu = sum(int(node.gpus // gpus) for node in nodes) if gpus else 2**31
        return max(1, min(by_cpu, by_gpu))

    async def grow(self, wanted: int) -> None:
        """Starts processes until there are `wanted` of them. With `one_per_node`, starts one on
        each node instead. Surplus processes end by themselves."""
        if not self._may_start():
            return
        if not (self._one_per_node or self._off_gpu_nodes):
            self._start_each([""] * (wanted - len(self._members)))
            return
        nodes = [node.id for node in await self._nodes()]
        if not self._may_start():
            return  # The nodes were requested in the meantime.
        if self._one_per_node:
            taken = [member.node for member in self.members]
            self._start_each(node for node in nodes if node not in taken)
            return
        for _ in range(wanted - len(self._members)):
            # If the allowed nodes are gone, Ray may add others.
            self._start_each(self._emptiest(nodes))

    def _may_start(self) -> bool:
        now = asyncio.get_running_loop().time()
        return not self.is_stopping and self.error is None and now >= self._not_before

    def _start_each(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._start(node)

    def _start(self, node: str) -> None:
        member = FleetMember(
            self._ray,
            self._job(),
            resources=self._resources,
            strategy=_strategy(node),
            node=node,
            on_report=self._report,
        )
        self._started += 1
        task = asyncio.create_task(self._watch(member), name=f"{self._what} {self._started}")
        self._members[task] = member
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Removes a process that is no longer watched. If watching it raised an error, this error
        ends the fleet."""
        del self._members[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.is_stopping:
            self._notify(f"an error at the end of a {self._what}: {error!r:.500}")
        else:
            self.error = self.error or error

    async def _report(self, report: WorkerReport, member: FleetMember) -> None:
        """Passes a report to the caller's `on_report`. An error in `on_report` ends the fleet, but
        not the process, which may finish its work in flight."""
        if self._on_report is None:
            return
        try:
            await self._on_report(report, member)
        except Exception as error:
            self._fail(error)

    async def stop(self, reason: str, *, grace: float) -> None:
        """Lets all processes finish their work in flight, and kills them after `grace` seconds."""
        self.is_stopping = True
        await self.order(Order(stop=reason))
        if self._members:
            await asyncio.wait(list(self._members), timeout=grace)
        self.kill()
        if self._members:
            await asyncio.wait(list(self._members), timeout=grace)

    async def order(self, order: Order) -> None:
        await asyncio.gather(*(member.send(order) for member in self.members))

    def kill(self) -> None:
        self.is_stopping = True
        for member in self.members:
            member.kill()

    async def until_change(self) -> None:
        """Waits until a process has ended, for at most `LOOK_SECONDS`."""
        if self._members:
            await asyncio.wait(
                list(self._members), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(RESTART_SECONDS)

    async def _watch(self, member: FleetMember) -> None:
        end = await member.work()
        try:
            # Its work is freed before another worker looks for work.
            await self._on_gone(member, end)
        finally:
            self._judge(member, end)

    def _judge(self, member: FleetMember, end: MemberEnd) -> None:
        where = f" on {end.place.host}" if end.place is not None else ""
        if self.is_stopping or end.how is HowEnded.DONE:
            return
        if end.how is HowEnded.REFUSED:
            self.error = WorkerRefused(f"a {self._what}{where} cannot work: {end.message}")
        elif end.how is HowEnded.STOPPED:
            self.error = WorkerStopped(f"a {self._what}{where} stopped: {end.message}")
        else:
            self._lose(member, end, where)

    def _lose(self, member: FleetMember, end: MemberEnd, where: str) -> None:
        self._losses += 1
        if self._losses > MAX_LOSSES + len(self._members):
            self.error = WorkersLost(
                f"{self._losses} of the {self._what}s were lost in a row, and nothing got done "
                f"meanwhile; the last{where}: {end.message}"
            )
            return
        self._notify(f"a {self._what}{where} is gone ({end.message}); it is replaced")
        pause = min(MAX_RESTART_SECONDS, RESTART_SECONDS * 2 ** max(0, self._losses - 3))
        if self._losses > 3:
            self._not_before = asyncio.get_running_loop().time() + pause

    async def _nodes(self) -> list[Node]:
        # Ray asks its control plane, which may be slow.
        nodes = await ray_calls.run(lambda: live_nodes(self._ray))
        if not self._off_gpu_nodes:
            return nodes
        return [node for node in nodes if not node.gpus]

    def _emptiest(self, nodes: Iterable[str]) -> list[str]:
        """Returns a list with the node that has the fewest of these processes, or [] if there are
        no nodes."""
        taken = [member.node for member in self.members]
        return [node for _, node in sorted((taken.count(node), node) for node in nodes)[:1]]


def _strategy(node: str) -> object:
    """Returns Ray's strategy for a process: on the given node, or spread over all nodes for ""."""
    if not node:
        return "SPREAD"
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
