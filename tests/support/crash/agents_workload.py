"""The crash suite's black-box agents: programs that add with a tool, each on its own wire.

The task's id says which program: `openai0`, `openai-stream0`, `urllib0` and so on. The replies of
the policy are drawn from `REPLIES`; for the last turn there is one only, so that every conversation
ends.
"""

import os

import holdfast
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.rollout.processors.processor import Returned
from support.gateway import warm_agents

COMMANDS = {
    "openai": ("openai_loop",),
    "openai-stream": ("openai_loop", "--stream"),
    "anthropic-stream": ("anthropic_loop", "--stream"),
    "responses": ("responses_loop",),
    "urllib": ("curl_loop", "--urllib"),
    "urllib-stream": ("curl_loop", "--stream"),
    "located": ("curl_loop", "--urllib", "--located"),
    "parallel": ("parallel_agents",),
    "shuffling": ("shuffling_agents",),
    "stubborn": ("stubborn",),
}
ADDING = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": {n}}}</tool_call>'
REPLIES = (
    *(f"@{turn} {text}" for turn in range(3) for text in (ADDING, f"so {{n}} {ADDING}{ADDING}")),
    "@3 it is {n}",
)


class AnyAgent(holdfast.RolloutProcessor):
    """One processor, and so one gateway, for each program."""

    async def setup(self) -> None:
        env = {"PID_FILE": f"{os.environ['HOLDFAST_EFFECTS']}.pids"}
        self._agents = {}
        for name, (program, *args) in COMMANDS.items():
            command = warm_agents.command(program, *args)
            self._agents[name] = BlackBoxRolloutProcessor(command, env=env)
            await self._agents[name].setup()

    async def acleanup(self) -> None:
        for agent in self._agents.values():
            await agent.acleanup()

    async def rollout(self, t: holdfast.Rollout) -> Returned:
        return await self._agents[t.task.id.rstrip("0123456789")].rollout(t)


solve = AnyAgent()


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
