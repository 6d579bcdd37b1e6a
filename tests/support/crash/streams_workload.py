"""The crash suite's agents that write down what a stream tells them. The task's id says which."""

import json
import os
import sys
from pathlib import Path

import holdfast
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.rollout.processors.processor import Returned
from support.paths import AGENT_PROGRAMS

PROGRAM = AGENT_PROGRAMS / "telling_loop.py"
OPTIONS = {"chat": (), "whole": ("--whole",), "messages": ("--anthropic",)}
ADDING = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": {n}}}</tool_call>'
LONG = "Let me see what there is to add, naïvely: {n} and {n}, and {n} times more of it than that."
REPLIES = (*(f"@{turn} {LONG} {ADDING}" for turn in range(3)), f"@3 It is {{n}}, after all. {LONG}")


class TellingAgents(holdfast.RolloutProcessor):
    """One processor for each program. A file beside the effects holds more variables for them."""

    async def setup(self) -> None:
        effects = os.environ["HOLDFAST_EFFECTS"]
        more = Path(f"{effects}.env")
        env = {"PID_FILE": f"{effects}.pids", "TOLD_FILE": f"{effects}.told"}
        env |= json.loads(more.read_text()) if more.exists() else {}
        self._agents = {}
        for name, options in OPTIONS.items():
            command = [sys.executable, str(PROGRAM), *options]
            self._agents[name] = BlackBoxRolloutProcessor(command, env=env)
            await self._agents[name].setup()

    async def acleanup(self) -> None:
        for agent in self._agents.values():
            await agent.acleanup()

    async def rollout(self, t: holdfast.Rollout) -> Returned:
        return await self._agents[t.task.id.rstrip("0123456789")].rollout(t)


solve = TellingAgents()


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
