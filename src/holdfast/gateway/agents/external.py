"""ExternalRolloutProcessor runs agents that are started elsewhere and that come to the gateway.

    POST /trajectories {}                              takes the next free trajectory
    POST /trajectories {"task": "…", "sample": 0}      takes this one; if repeated, its next attempt

The response has the task, the addresses and the key. The agent ends with `POST …/complete`. An
attempt is durable before its key is sent, and its end is durable before it is confirmed. So
whichever process dies, the next process knows which agent is at work.
"""

import asyncio
import contextlib
from typing import Unpack

from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.agents.gateway_processor import GatewayOptions, GatewayRolloutProcessor
from holdfast.gateway.assignment.hold_routes import HoldRoutes
from holdfast.gateway.assignment.queue import REJOIN_SECONDS, PendingTrajectories, PendingTrajectory
from holdfast.gateway.assignment.routes import AssignmentRoutes
from holdfast.gateway.assignment.unbound_keys import UnboundKeys
from holdfast.gateway.calls.attempt_status import AttemptLookup
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.keys import Keys
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Binding, Gateway, WorkerLinks
from holdfast.gateway.workers.peers import Peers, WorkerPlace
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import Rewound
from holdfast.records.run import Run
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import Returned
from holdfast.rollout.replay.session import Session

RUN_OVER = RequestRejected(410, "every trajectory of the run is done", code="run_over")
STOPPING = RequestRejected(503, "the gateway is closing", code="stopping")
REPLACED = "another agent has taken the trajectory"
IDLE_POLL_SECONDS = 0.2
"""Seconds between two checks whether an agent's calls have ended, when a run stops."""


class ExternalRolloutProcessor(GatewayRolloutProcessor):
    """Runs agents that are started elsewhere. Opens as many trajectories at once as the run's
    concurrency allows."""

    ends_on_complete = True
    address_source = "the answer of POST /trajectories"

    @checks_arguments()
    def __init__(
        self,
        address: Address = LOOPBACK,
        *,
        rejoin: float = REJOIN_SECONDS,
        place: WorkerPlace | None = None,
        **options: Unpack[GatewayOptions],
    ):
        """Creates the processor. For `rejoin` seconds, a trajectory is kept for an agent that may
        have outlived the process that it spoke to. `place` identifies this worker among the
        gateway's workers."""
        super().__init__(address, **options)
        self._keys = Keys()
        self._queue = PendingTrajectories(rejoin)
        self._by_key: dict[str, PendingTrajectory] = {}
        self._peers = None if place is None else Peers(place)
        self._outside = HoldRoutes(self.hold, peers=self._peers)
        self._register: AttemptLookup | None = None
        self._session: Session | None = None
        self.url = ""
        """The URL for agents, after the setup."""
        self.token = ""
        """The token for `/trajectories`, after the setup."""

    def attach(self, journal: Journal, run: Run, *, secret: bytes) -> None:
        """Sets the run and the secret. The run's record tells how the attempts of earlier processes
        ended. The secret signed the keys of those attempts. Call it before the setup."""
        self._register = AttemptLookup(journal, run)
        self._keys = Keys(secret)

    def make_gateway(self) -> Gateway:
        peers, outside = self._peers, self._outside
        counter = AssignmentRoutes(
            self._queue,
            peers=peers,
            on_report=lambda report: self._running.take_report(report),
        )
        return self._make_gateway(
            endpoints={"/trajectories": counter.open, **outside.endpoints()},
            keys=self._keys,
            on_unbound_key=UnboundKeys(
                self._queue,
                self._adopt,
                register=self._register,
                peers=peers,
                is_stopping=lambda: self._is_stopping,
            ),
            links=WorkerLinks(
                {
                    **counter.internal_routes(lambda: self._running.stats),
                    **outside.internal_routes(),
                },
                socket=None if peers is None else peers.place.own,
                all_stats=None if peers is None else lambda: peers.stats(self._running.stats),
            ),
        )

    @property
    def _is_stopping(self) -> bool:
        return self._session is not None and self._session.state.is_stopping

    def _adopt(self, pending: PendingTrajectory, key: str) -> None:
        self._running.adopt(pending.binding, key)

    async def setup(self) -> None:
        if self._peers is not None:
            await self._peers.start()
        await super().setup()
        await self._outside.obey_earlier_orders()
        self.url, self.token = self._running.url, self._running.token

    async def acleanup(self) -> None:
        await self._queue.close(STOPPING if self._is_stopping else RUN_OVER)
        await super().acleanup()
        if self._peers is not None:
            await self._peers.aclose()

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        """Waits for an agent, and then for its end. The trajectory's reward is the one that the
        agent posted."""
        self._session = t.session
        attempt = len(t.session.history.attempts) + 1
        pending = PendingTrajectory(t.key, attempt, t.task, binding, trajectory, asyncio.Event())
        self._by_key[binding.key] = pending
        await self._queue.put(pending)
        try:
            await self._until_over(t, pending)
            return None
        finally:
            await self._queue.withdraw(pending)
            del self._by_key[binding.key]

    async def _until_over(self, t: Rollout, pending: PendingTrajectory) -> None:
        trajectory, stop = pending.trajectory, t.session.context.stop
        done = asyncio.create_task(trajectory.completed.wait())
        replaced = asyncio.create_task(pending.replaced.wait())
        stopped = asyncio.create_task(stop.wait())
        waiting = {done, replaced, stopped}
        try:
            while not (done.done() or replaced.done()):
                if stopped.done() and trajectory.is_idle:
                    # An agent without calls would delay the end of the run.
                    t.session.state.check_running()
                await asyncio.wait(
                    {task for task in waiting if not task.done()},
                    timeout=IDLE_POLL_SECONDS if stopped.done() else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not done.done():
                # Not a failure: the next agent gets the recorded replies.
                raise t.session.state.fail(Rewound(REPLACED))
        finally:
            for task in waiting:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(waiting)

    def expects_calls(self, binding: Binding) -> bool:
        pending = self._by_key.get(binding.key)
        return pending is not None and pending.is_taken
