"""What all processors have in common whose agents speak to a gateway.

The processor owns one gateway for all rows. For each attempt it binds a trajectory, lets the agent
run, and watches: an engine that failed, a limit that the policy met and an agent that fell silent
each end the attempt in their own way.
"""

import asyncio

from holdfast.gateway.errors import AgentFailed, AgentSilent
from holdfast.gateway.server import Binding, Gateway
from holdfast.gateway.trajectory import AgentTrajectory
from holdfast.records.errors import Truncated, UsageError
from holdfast.rollout.containment import end
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import Returned, RolloutProcessor

SILENCE = 1800.0
LOOK = 1.0


class GatewayRolloutProcessor(RolloutProcessor):
    """Override `run_agent`."""

    def __init__(self, *, silence: float = SILENCE):
        """`silence`: seconds without a call, and without waiting for one, after which an agent is
        given up."""
        if not silence > 0:
            raise UsageError(f"silence must be more than 0 seconds, not {silence!r}")
        self._silence = silence
        self._gateway: Gateway | None = None

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        """Returns when the agent has done its task; `AgentFailed` if it ended without."""
        raise UsageError(f"{type(self).__name__} defines no `run_agent`")

    def expects_calls(self, binding: Binding) -> bool:
        """Whether there is an agent that could be silent."""
        return True

    def make_gateway(self) -> Gateway:
        from holdfast.gateway.wires.all import WIRES

        return Gateway(WIRES)

    async def setup(self) -> None:
        self._gateway = await self.make_gateway().__aenter__()

    async def acleanup(self) -> None:
        if self._gateway is not None:
            await self._gateway.__aexit__(None, None, None)

    async def rollout(self, t: Rollout) -> Returned:
        assert self._gateway is not None, "a processor is set up first"
        trajectory = AgentTrajectory(t.session)
        binding = self._gateway.bind(trajectory)
        try:
            found = await self._watched(t, trajectory, binding)
        except AgentFailed:
            if trajectory.limit is not None:
                # It was told of the limit, and fell over it.
                raise Truncated(trajectory.limit.reason, returned=trajectory.reward) from None
            raise
        finally:
            self._gateway.release(binding)
            await trajectory.aclose()
        if found is None:
            found = trajectory.reward
        if trajectory.limit is not None:
            raise Truncated(trajectory.limit.reason, returned=found)
        return found

    async def _watched(self, t: Rollout, trajectory: AgentTrajectory, binding: Binding) -> Returned:
        """The agent's result. Whatever else happens first ends the agent."""
        running = self.run_agent(t, binding, trajectory)
        agent = asyncio.create_task(running, name=f"agent of {trajectory.name}")
        broken = asyncio.create_task(trajectory.broken.wait())
        try:
            while not agent.done():
                await asyncio.wait(
                    {agent, broken}, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED
                )
                if broken.done() and t.session.broken is not None:
                    raise t.session.broken
                if self.expects_calls(binding) and trajectory.is_silent(self._silence):
                    raise t.session.failed(
                        AgentSilent(f"the agent asked nothing for {self._silence:g} s")
                    )
            return agent.result()
        finally:
            broken.cancel()
            await end(agent)


def attempt_of(t: Rollout) -> int:
    """The number of the present attempt."""
    session = t.session
    return max(1, len(session.history.attempts) + session.has_prelude)
