"""The agents that a command names: `--agent oracle`, `--agent terminal` or `--agent 'command'`.

Each works in a container: that of its task, or that of the run (`--world`). If the task is one of
Harbor's, its verifier gives the reward.
"""

from collections.abc import Sequence

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.agents.workspace import WorkspaceWorld
from holdfast.harbor.environment import SOLVE, VERIFY, HarborEnvironment, harbor_task
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.episodes.episode import Episode
from holdfast.rollout.processors.agent import AgentRolloutProcessor
from holdfast.rollout.processors.processor import Returned, RolloutProcessor
from holdfast.rollout.replay.budget import Limits
from holdfast.worlds.running.environment import WorldEnvironment

ORACLE, TERMINAL = "oracle", "terminal"
TURNS = 200
"""The most turns of the terminal agent."""
SYSTEM = (
    "You work in a Linux container through the tool `bash`; other tools read and write files. Do "
    "what the user asks, and check the result. Nobody answers questions. When it is done, reply "
    "without a tool call."
)


def environment_of(task: Task) -> WorldEnvironment:
    harbor = harbor_task(task)
    return WorldEnvironment() if harbor is None else HarborEnvironment(harbor)


async def verify(t: Rollout, episodes: Sequence[Episode]) -> Returned:
    if harbor_task(t.task) is None:
        return None
    return (await episodes[0].step(VERIFY)).reward


class OracleProcessor(RolloutProcessor):
    """Runs the solutions of Harbor tasks, as a check of the tasks themselves."""

    needs_policy = False

    async def rollout(self, t: Rollout) -> Returned:
        if harbor_task(t.task) is None:
            raise UsageError(f"--agent oracle runs solutions of Harbor tasks; {t.task.id} is none")
        episode = await t.env(environment_of(t.task))
        await episode.step(SOLVE)
        return await verify(t, [episode])


class TerminalProcessor(AgentRolloutProcessor):
    """Lets the model work in the container with Holdfast's own tools, within the task's time."""

    def limits_of(self, task: Task) -> Limits:
        harbor = harbor_task(task)
        seconds = None if harbor is None else harbor.agent_seconds
        return Limits(self.limits.turns, self.limits.tokens, seconds)


def agent_named(text: str) -> RolloutProcessor:
    """Returns the processor that `--agent` names."""
    if text == ORACLE:
        return OracleProcessor()
    if text == TERMINAL:
        return TerminalProcessor(
            environments=[environment_of], system_prompt=SYSTEM, finish=verify, max_turns=TURNS
        )
    return BlackBoxRolloutProcessor(
        ["/bin/sh", "-c", text], world=WorkspaceWorld(environment_of), finish=verify
    )
