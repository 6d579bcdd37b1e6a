"""AttemptSetup opens the workspace and the environments of one attempt, and records its end.

When the agent is done, its end is recorded together with its folder. So if the judging is
interrupted, the agent is not started again. Actions in environments after the end have a scope of
their own.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.gateway.agents.workspace import AgentWorkspace, Restore, WorkspaceWorld, World
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.step import ValueRecorded
from holdfast.rollout.context import Rollout
from holdfast.rollout.episodes.environment import Observation
from holdfast.rollout.episodes.episode import Episode
from holdfast.rollout.processors.agent import MakeEnvironment
from holdfast.rollout.processors.processor import Returned, Reward
from holdfast.rollout.tools.tool import Tool
from holdfast.worlds.contract.spec import Mount
from holdfast.worlds.running.environment import WorldEnvironment

AGENT_END = "the agent's end"


class End(Struct, frozen=True):
    """The end of an agent that did its task or met a limit."""

    reward: Reward = None
    turns: int | None = None
    limit: str = ""

    @property
    def returned(self) -> Returned:
        return self.reward if self.turns is None else (self.turns, self.reward)

    def with_judgement(self, returned: Returned) -> "End":
        """Returns this end with the reward and the turns from `returned`. A value that `returned`
        does not have stays as it is."""
        turns, reward = returned if isinstance(returned, tuple) else (None, returned)
        return End(
            self.reward if reward is None else reward,
            self.turns if turns is None else turns,
            self.limit,
        )


class AttemptSetup:
    """The workspace and the environments of one attempt. Open it before the agent is started."""

    def __init__(self, t: Rollout):
        self.folder: AgentWorkspace | None = None
        self.episodes: list[Episode] = []
        self._t = t
        self._after: Rollout | None = None

    async def open(
        self,
        world: World,
        environments: Sequence[MakeEnvironment],
        mounts: tuple[Mount, ...] = (),
    ) -> None:
        """Opens the workspace and the environments. `mounts` are folders of this machine that a
        container gets."""
        session = self._t.session
        if isinstance(world, WorkspaceWorld):
            workspace = world.workspace(self._t.task)
            if isinstance(workspace, WorldEnvironment):
                workspace.mounts = mounts
            # Once the agent is done, its final state is judged.
            restore = Restore.LATEST if self.is_over else Restore(world.restore)
            self.folder = AgentWorkspace(session, workspace, restore=restore, act=self._act)
            self.episodes.append(self.folder)
        for make in environments:
            path = str(len(self.episodes))
            self.episodes.append(Episode(session, make(self._t.task), path, self._act))
        for episode in self.episodes:
            await episode.open(None)
        if self.folder is not None and self.is_over and not self.folder.is_resumed:
            raise await session.log.rewind([self._end_path()], "what the agent left is damaged", "")

    @property
    def tools(self) -> list[Tool]:
        """Returns the tools of the environments. The agent's own folder has none, because the agent
        uses it directly."""
        environments = (episode for episode in self.episodes if episode is not self.folder)
        return [tool for episode in environments for tool in episode.tools]

    @property
    def steps_before(self) -> frozenset[str]:
        return frozenset() if self.folder is None else self.folder.steps_before

    async def _act(self, episode: Episode, action: str) -> Observation:
        if self._after is None:
            raise UsageError("while the agent is at work, only its tools act: step in `finish`")
        return await self._after.act(episode, action)

    # --- after the agent

    @property
    def is_over(self) -> bool:
        """Returns whether the record says that the agent is done."""
        return bool(self._end_path())

    def _end_path(self) -> str:
        steps = self._t.session.history.steps.items()
        paths = (
            path
            for path, step in steps
            if isinstance(step, ValueRecorded) and step.name == AGENT_END and "." in path
        )
        return next(paths, "")

    async def end(self, trajectory: AgentTrajectory, end: End | None) -> tuple[Rollout, End]:
        """Makes the agent's end durable. `end` is None if it is recorded already. Use the returned
        rollout for everything after the end."""
        session = self._t.session
        if end is None:
            scope = self._end_path().removesuffix("0")
            for path in session.history.steps:
                session.log.keep(path)
        else:
            end = await self._keep_workspace(end)
            # Cut here and not only at the end of the attempt, because a later attempt starts no
            # agent.
            await session.log.cut_untaken()
            scope = f"{trajectory.take_number()}.0."
        self._after = Rollout(session, scope=scope)
        recorded: object = await self._after.value(lambda: msgspec.to_builtins(end), name=AGENT_END)
        return self._after, msgspec.convert(recorded, End)

    async def _keep_workspace(self, end: End) -> End:
        if self.folder is None:
            return end
        try:
            await self.folder.take()
        except Truncated as limit:
            return End(end.reward, end.turns, end.limit or limit.reason)
        return end
