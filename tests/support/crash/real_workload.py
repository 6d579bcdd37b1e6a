"""The crash suite's real worlds: a workspace with commands, an MCP server with a state, a game."""

import sys

import holdfast
from holdfast.environments.gym.environment import GymEnvironment
from holdfast.environments.mcp import McpServer
from holdfast.environments.workspace import Workspace
from holdfast.rollout.processors.processor import Returned
from support.paths import MCP_SERVERS

COUNTING = McpServer.stdio(sys.executable, str(MCP_SERVERS / "bare.py"), recovery="replay")
MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}
REPLIES = (
    (
        '<tool_call>{"name": "add_one", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "shell", "arguments": {"command": "echo {n} >> notes; cat notes"}}'
        "</tool_call> right"
    ),
    (
        '<tool_call>{"name": "add_one", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "write_file", "arguments": {"path": "a/{n}.txt", "content": "{n}"}}'
        "</tool_call> down"
    ),
    '<tool_call>{"name": "shell", "arguments": {"command": "ls -R; wc -l notes"}}</tool_call> up',
)


class RealWorld(holdfast.RolloutProcessor):
    """Which world is in the task's id."""

    async def rollout(self, t: holdfast.Rollout) -> Returned:
        return await getattr(self, t.task.id.rstrip("0123456789"))().rollout(t)

    def mcp(self) -> holdfast.RolloutProcessor:
        return holdfast.AgentRolloutProcessor(
            environments=[lambda task: COUNTING.environment()], max_turns=3
        )

    def files(self) -> holdfast.RolloutProcessor:
        async def counted(t, episodes):
            return (await episodes[0].step("cat notes | wc -l")).reward

        return holdfast.AgentRolloutProcessor(
            environments=[lambda task: Workspace({"notes": "begun\n"}, sandbox="none")],
            max_turns=3,
            finish=counted,
        )

    def lake(self) -> holdfast.RolloutProcessor:
        return holdfast.EnvironmentRolloutProcessor(
            lambda task: GymEnvironment("FrozenLake-v1", actions=MOVES), max_turns=4
        )


solve = RealWorld()


def score(trajectory: holdfast.TrajectoryView) -> float:
    return float(len(trajectory.turns))
