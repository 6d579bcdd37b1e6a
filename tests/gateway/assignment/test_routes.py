"""A request that waits for a trajectory is answered by the event that it opens, at any worker.

The event loop's clock stands still while a request waits: anything that looked again after a while
would never look."""

import asyncio
import contextlib
import re
import threading

import pytest

from holdfast.gateway.agents.external import RUN_OVER
from holdfast.gateway.assignment.queue import PendingTrajectories, PendingTrajectory
from holdfast.gateway.assignment.routes import AssignmentRoutes, TrajectoryRequest
from holdfast.gateway.assignment.unbound_keys import UnboundKeys
from holdfast.gateway.calls.attempt_status import AttemptLookup
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.keys import Keys
from holdfast.gateway.server import Gateway, WorkerLinks
from holdfast.gateway.wires.all import WIRES
from holdfast.gateway.workers.peers import TAKE, Peers, WorkerPlace
from support.gateway.counter import CHAT, HELLO, exchange, post, request
from support.rollout.stage import TrajectoryUnderTest

KEYS = Keys(b"s" * 32)


class Worker:
    """One of `count` workers in this process, without an engine: tests open trajectories."""

    def __init__(self, folder, index: int, count: int, subject: TrajectoryUnderTest):
        self.subject = subject
        self.pending = PendingTrajectories(rejoin=600.0)
        place = WorkerPlace(str(folder), index, count)
        self.peers = Peers(place) if count > 1 else None

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        if self.peers is not None:
            await self.peers.start()
            stack.push_async_callback(self.peers.aclose)
        routes = AssignmentRoutes(
            self.pending,
            peers=self.peers,
            on_report=lambda report: self.gateway.take_report(report),
        )
        run = await self.subject.journal.find_run((await self.subject.lease()).key.run)
        unbound = UnboundKeys(
            self.pending,
            lambda pending, key: self.gateway.adopt(pending.binding, key),
            register=AttemptLookup(self.subject.journal, run),
            peers=self.peers,
            is_stopping=lambda: False,
            takeover_seconds=600.0,
        )
        self.gateway = await stack.enter_async_context(
            Gateway(
                WIRES,
                endpoints={"/trajectories": routes.open},
                keys=KEYS,
                on_unbound_key=unbound,
                links=WorkerLinks(
                    routes.internal_routes(lambda: self.gateway.stats),
                    socket=None if self.peers is None else self.peers.place.own,
                ),
            )
        )

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.gateway.token}"}

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    async def open(self) -> PendingTrajectory:
        session = await self.subject.session()
        trajectory = AgentTrajectory(session)
        binding = self.gateway.bind(trajectory)
        attempt = len(session.history.attempts) + 1
        pending = PendingTrajectory(
            session.lease.key, attempt, session.task, binding, trajectory, asyncio.Event()
        )
        await self.pending.put(pending)
        return pending

    async def in_flight(self) -> int:
        """As `/metrics` has it, without the request for that."""
        text = (await exchange(self.port, request("GET", "/metrics"))).body.decode()
        return int(re.search(r"^holdfast_gateway_in_flight (\d+)$", text, re.MULTILINE)[1]) - 1

    @property
    def waits(self) -> bool:
        """Whether a request waits for a trajectory to open here."""
        return bool(self.pending._changed._waiters)


@contextlib.asynccontextmanager
async def workers(folder, count: int):
    subject = TrajectoryUnderTest()
    async with contextlib.AsyncExitStack() as stack:
        results = [Worker(folder, index, count, subject) for index in range(count)]
        for worker in results:
            await worker.start(stack)
        yield results


@contextlib.contextmanager
def stopped_clock():
    """No timer of the event loop goes off. What hangs is cancelled by a thread of its own."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    watchdog = threading.Timer(60, lambda: loop.call_soon_threadsafe(task.cancel))
    now = loop.time()
    loop.time = lambda: now
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        del loop.time


async def waiting(workers) -> None:
    while not all(worker.waits for worker in workers):
        await asyncio.sleep(0)


@pytest.mark.parametrize("wanted", [{}, {"task": "t", "sample": 0}], ids=["any", "certain"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_request_for_a_trajectory_is_answered_when_one_opens(tmp_path, count, wanted):
    async def body():
        async with workers(tmp_path, count) as results:
            raw = post("/trajectories", {**wanted, "wait": 30}, **results[0].bearer)
            reply = asyncio.create_task(exchange(results[0].port, raw))
            with stopped_clock():
                await waiting(results)
                assert [await worker.in_flight() for worker in results] == [1, 0][:count]
                await results[-1].open()
                return await reply

    reply = asyncio.run(body())
    assert (reply.status, reply.json["trajectory"]) == (200, "run/t/0")


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_of_an_agent_that_outlived_its_worker_is_answered_when_the_trajectory_opens(
    tmp_path, count
):
    async def body():
        async with workers(tmp_path, count) as results:
            key = await key_of_a_gateway_that_died(results[0].subject)
            raw = post(CHAT, HELLO, Authorization=f"Bearer {key}")
            reply = asyncio.create_task(exchange(results[0].port, raw))
            with stopped_clock():
                await waiting(results)
                pending = await results[-1].open()
                status = (await reply).status
            await pending.trajectory.aclose()
            return status

    assert asyncio.run(body()) == 200


async def key_of_a_gateway_that_died(subject: TrajectoryUnderTest) -> str:
    async with Gateway(WIRES, keys=KEYS) as gateway:
        trajectory = AgentTrajectory(await subject.session())
        key = gateway.bind(trajectory).key
        await trajectory.session.log.start_attempt()  # As before a key is sent.
        return key


def test_a_waiting_request_is_answered_when_nothing_is_assigned_any_more(tmp_path):
    async def body():
        async with workers(tmp_path, 2) as results:
            raw = post("/trajectories", {"task": "t", "wait": 30}, **results[0].bearer)
            reply = asyncio.create_task(exchange(results[0].port, raw))
            with stopped_clock():
                await waiting(results)
                await results[0].pending.close(RUN_OVER)
                return await reply

    reply = asyncio.run(body())
    assert (reply.status, reply.json["error"]["code"]) == (410, "run_over")


@pytest.mark.parametrize("is_seen", [False, True], ids=["never called", "called"])
def test_a_trajectory_given_through_a_worker_that_died_waits_for_its_agent_or_is_given_again(
    tmp_path, is_seen
):
    async def body():
        async with workers(tmp_path, 2) as result:
            owner, relaying = result
            owner.pending._rejoin = 0.2
            opened = await owner.open()
            assert await relaying.peers.request_ticketed(0, TAKE, TrajectoryRequest(), "ticket")
            if is_seen:
                opened.trajectory.touch()
            await relaying.peers.aclose()  # As a kill does, it closes the connection.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(opened.replaced.wait(), 1.0 if is_seen else 60.0)
            return opened.replaced.is_set()

    assert asyncio.run(body()) is not is_seen
