"""The common part of processors that run agents behind a gateway.

The processor has one gateway for all rows. For each attempt it binds a trajectory, lets the agent
run, and watches it. A failed engine, a limit that the policy met, and a silent agent each end the
attempt in their own way.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypedDict

from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.agents.attempt import AttemptSetup, End
from holdfast.gateway.agents.workspace import FRESH, WorkspaceWorld, World
from holdfast.gateway.calls.probes import probes
from holdfast.gateway.calls.rejections import OnRefused
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.calls.unsupported import IgnoredFields
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.messages import AgentFailed, AgentSilent
from holdfast.gateway.server import Binding, Gateway
from holdfast.policy.hold import HOLD_SECONDS, CallHolds, Hold, with_holds
from holdfast.policy.policy import Policy
from holdfast.records.encoding.redaction import hide
from holdfast.records.errors import HoldfastError, Rewound, Truncated, UsageError
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.agent import Finish, MakeEnvironment, check_environments
from holdfast.rollout.processors.processor import Returned, RolloutProcessor, code_of
from holdfast.rollout.threads.contain import end_task as ended
from holdfast.rollout.tools.tool import Function, Tool, tools_of
from holdfast.worlds.contract.spec import Mount

SILENCE_SECONDS = 1800.0
NO_CALLS = (
    "the agent ended without having asked the gateway for anything that could be answered: it is "
    "to take its address and its key from {}; one that needs no model sends its reward"
)
SILENCE_POLL_SECONDS = 1.0
TAKEOVER_SECONDS = 10.0
"""Seconds in which a reply in flight may become durable before another agent takes the
trajectory."""


class GatewayOptions(TypedDict, total=False):
    """The options of every processor that runs agents behind a gateway."""

    silence: float
    """Seconds after which an agent is given up if it makes no call and waits for no answer."""
    tools: "Sequence[Tool | Function]"
    """Tools that agents can call through the gateway, besides the tools of `environments`."""
    environments: Sequence[MakeEnvironment]
    finish: Finish | None
    """An async function that is called when the agent is done, even if a limit ended it. It returns
    the reward."""
    limits: GatewayLimits | None
    ignore: Sequence[str]
    """The fields to remove from requests (see `IgnoredFields`)."""
    on_refused: OnRefused | str
    """The outcome ("fail" or "accept") of a trajectory whose agent ended as if its task was done,
    although a call was refused and not repeated."""


class GatewayRolloutProcessor(RolloutProcessor):
    """Runs agents behind a gateway. Subclasses override `run_agent`."""

    streams_replies = True
    ends_on_complete = False
    """Whether an agent ends its attempt by saying that it is done (`POST /complete`)."""
    address_source = (
        "OPENAI_BASE_URL, ANTHROPIC_BASE_URL or HOLDFAST_URL and the variables beside them"
    )
    """Where agents find the gateway's address and their key, in words for error messages."""

    def __init__(
        self,
        address: Address = LOOPBACK,
        world: World = FRESH,
        /,
        *,
        silence: float = SILENCE_SECONDS,
        tools: "Sequence[Tool | Function]" = (),
        environments: Sequence[MakeEnvironment] = (),
        finish: Finish | None = None,
        limits: GatewayLimits | None = None,
        ignore: Sequence[str] = (),
        on_refused: OnRefused | str = OnRefused.FAIL,
    ):
        """Creates the processor. `GatewayOptions` describes the options."""
        if not silence > 0:
            raise UsageError(f"silence must be more than 0 seconds, not {silence!r}")
        if on_refused not in list(OnRefused):
            raise UsageError(f'on_refused is "fail" or "accept", not {on_refused!r:.100}')
        self._on_refused = OnRefused(on_refused)
        self._silence = silence
        self.tools = tools_of(tools, where="tools")
        self.environments = check_environments(environments)
        self.world = world
        self.finish = finish
        self._limits = limits or GatewayLimits()
        self._ignore = IgnoredFields(ignore).names
        self._address = address
        hide(self._address.token)
        self._gateway: Gateway | None = None
        self._holds = CallHolds()

    def wrap_policy(self, policy: Policy) -> Policy:
        """Wraps the policy so that its calls can be held. The gateway uses the holds of the
        returned policy."""
        holdable = with_holds(policy)
        self._holds = holdable.holds
        return holdable

    @property
    def identity(self) -> str:
        return self.surroundings

    @property
    def surroundings(self) -> str:
        """Returns the part of `identity` that does not describe the agent itself: its tools,
        environments, workspace, judge (`finish`) and options."""
        world = self.world
        parts = [*self.tools, *self.environments]
        parts += [world.workspace] if isinstance(world, WorkspaceWorld) else []
        parts += [] if self.finish is None else [self.finish]
        names = [tool.name for tool in self.tools]
        around = f" {names} {world.identity} {code_of(*parts)}" if parts else ""
        around += f" ignoring {sorted(self._ignore)}" if self._ignore else ""
        return around + (" accepting refused calls" if self._accepts_refusals else "")

    @property
    def _accepts_refusals(self) -> bool:
        return self._on_refused is OnRefused.ACCEPT

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Returns the folders of this machine that an agent's container gets."""
        return ()

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        """Runs the agent, and returns when it has done its task. Raises `AgentFailed` if the agent
        ended without doing its task."""
        raise UsageError(f"{type(self).__name__} defines no `run_agent`")

    def expects_calls(self, binding: Binding) -> bool:
        """Returns whether an agent is at work. Only then can it be too silent."""
        return True

    def make_gateway(self) -> Gateway:
        return self._make_gateway()

    def _make_gateway(self, **more: Any) -> Gateway:
        """Returns a gateway at the processor's address. `more` are further parameters of the
        gateway."""
        from holdfast.gateway.wires.all import WIRES

        return Gateway(
            WIRES,
            at=self._address,
            limits=self._limits,
            ignore=self._ignore,
            holds=self._holds,
            **more,
        )

    @property
    def _running(self) -> Gateway:
        if self._gateway is None:
            raise UsageError("the gateway exists while a run goes on: not before, and not after")
        return self._gateway

    def hold(self, seconds: float = HOLD_SECONDS) -> Hold:
        """Makes calls that need sampling wait until `end()` of the returned hold is called, or for
        at most `seconds`. See `Gateway.hold`."""
        return self._running.hold(seconds)

    def held(self, seconds: float = HOLD_SECONDS) -> AbstractAsyncContextManager[None]:
        """Holds calls while a block runs. See `hold`."""
        return self._running.held(seconds)

    async def setup(self) -> None:
        # Set before the gateway listens, because a request may already wait.
        self._gateway = self.make_gateway()
        await self._gateway.__aenter__()

    async def acleanup(self) -> None:
        if self._gateway is not None:
            await self._gateway.__aexit__(None, None, None)
            self._gateway = None

    async def rollout(self, t: Rollout) -> Returned:
        setup = AttemptSetup(t)
        await setup.open(self.world, self.environments, self.mounts)
        trajectory = AgentTrajectory(t.session)
        trajectory.set_tools((*self.tools, *setup.tools), made_before=setup.steps_before)
        is_over = setup.is_over
        end = None if is_over else await self._run_to_end(t, trajectory)
        if is_over or self.finish is not None or setup.folder is not None:
            after, end = await setup.end(trajectory, end)
            if self.finish is not None:
                judged = await self.finish(after, setup.episodes)
                end = end if judged is None else end.with_judgement(judged)
        assert end is not None, "an agent that is not over has ended"
        t.session.log.unseen += probes(t.session.history, t.task)
        if end.limit:
            raise Truncated(end.limit, returned=end.returned)
        return end.returned

    async def _run_to_end(self, t: Rollout, trajectory: AgentTrajectory) -> End:
        """Runs the agent and returns how it ended. Raises an error if the end is not an outcome of
        the policy."""
        assert self._gateway is not None, "a processor is set up first"
        binding = self._gateway.bind(trajectory, ends=self.ends_on_complete)
        returned: Returned = None
        limit = ""
        try:
            returned = await self._watch(t, trajectory, binding)
        except Truncated as reached:
            limit = reached.reason
        except (AgentFailed, AgentSilent, Rewound) as gone:
            # If the agent was told about a reached limit, its failure follows from the limit.
            if trajectory.limit is None or not isinstance(gone, AgentFailed):
                self._gateway.release(binding)
                await self._let_finish(trajectory, gone)
                raise
        finally:
            self._gateway.release(binding)
            await trajectory.aclose()
        if t.session.state.broken is not None:
            raise t.session.state.broken
        if (
            not self._accepts_refusals
            and (refused := trajectory.rejected_calls.failure()) is not None
        ):
            raise t.session.state.fail(refused)
        limit = limit if trajectory.limit is None else str(trajectory.limit.reason)
        end = End(trajectory.reward, limit=limit).with_judgement(returned)
        if self.is_mute(trajectory, end.returned):
            raise t.session.state.fail(self.never_answered(trajectory))
        return end

    async def _let_finish(self, trajectory: AgentTrajectory, gone: HoldfastError) -> None:
        if isinstance(gone, Rewound):
            # The new agent waits for the next attempt.
            await trajectory.let_finish(only_undelivered=True, seconds=TAKEOVER_SECONDS)
        else:
            await trajectory.let_finish()

    def is_mute(self, trajectory: AgentTrajectory, returned: Returned) -> bool:
        """Returns whether an agent has ended without a call and without a result. Such an agent
        used a model elsewhere, or failed without reporting it. Neither is an outcome of the policy.
        """
        if not self._accepts_refusals and trajectory.rejected_calls.open:
            return False  # The refusal says more than this error.
        return returned is None and self.finish is None and not trajectory.has_calls

    def never_answered(self, trajectory: AgentTrajectory, wrote: str = "") -> AgentFailed:
        """Returns the failure of an agent that made no calls, or whose calls were all refused."""
        if (refused := trajectory.rejected_calls.failure()) is not None:
            return refused
        message = NO_CALLS.format(self.address_source)
        return AgentFailed(f"{message}\nIt wrote:\n{wrote}" if wrote else message)

    async def _watch(self, t: Rollout, trajectory: AgentTrajectory, binding: Binding) -> Returned:
        """Runs the agent and returns its result. If the attempt breaks, or the agent is silent for
        too long, ends the agent and raises the error."""
        running = self.run_agent(t, binding, trajectory)
        agent = asyncio.create_task(running, name=f"agent of {trajectory.name}")
        broken = asyncio.create_task(trajectory.broken.wait())
        try:
            while not agent.done():
                await asyncio.wait(
                    {agent, broken},
                    timeout=SILENCE_POLL_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if broken.done() and t.session.state.broken is not None:
                    raise t.session.state.broken
                if self.expects_calls(binding) and trajectory.is_silent(self._silence):
                    message = f"the agent asked nothing for {self._silence:g} s"
                    if self.ends_on_complete:
                        message += "; one that is done says so: POST /complete"
                    raise t.session.state.fail(AgentSilent(message))
            return agent.result()
        finally:
            broken.cancel()
            await _end_agent(agent)


async def _end_agent(agent: "asyncio.Task[Returned]") -> None:
    """Ends the agent and waits for its end. A cancellation does not shorten this wait, because a
    second cancellation would interrupt the agent while it ends its own children."""
    ending = asyncio.create_task(ended(agent), name=f"end of {agent.get_name()}")
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait({ending})
        raise
