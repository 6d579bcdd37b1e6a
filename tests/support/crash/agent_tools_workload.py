"""The crash suite's agents with worlds: tools of each contract through the gateway, and workspaces.

The task's id says what its agent has: `read0`, `pay0` and `build0` a tool that is idempotent, at
most once, or takes its world with it; `home0` a workspace that it goes on in, `start0` one that it
starts over in, `shell0` one that only the gateway's tools reach into.
"""

import os
import sys

import holdfast
from holdfast.environments import Workspace
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.agents.workspace import WorkspaceWorld
from holdfast.rollout.processors.processor import Returned
from support.crash.workload import effect
from support.paths import AGENT_PROGRAMS

WITH_TOOLS = [sys.executable, str(AGENT_PROGRAMS / "tools_loop.py")]
WITH_HANDS = [sys.executable, str(AGENT_PROGRAMS / "folder_agent.py")]
ACT = '<tool_call>{"name": "act", "arguments": {"n": {n}}}</tool_call>'
SAME = '<tool_call>{"name": "act", "arguments": {"n": 1}}</tool_call>'
REPLIES = (
    *(f"@{turn} {text}" for turn in range(3) for text in (ACT, f"so {{n}} {SAME}{SAME}")),
    "@3 it is {n}",
)
CONTRACTS = {"read": "idempotent", "pay": "at_most_once", "build": "restart"}
EFFECTS = {"read": "look_up", "pay": "pay", "build": "build"}
"""The names by which the laboratory knows what may happen how often."""


def acting(name: str) -> holdfast.Tool:
    async def act(n: int, idempotency_key: str) -> str:
        """Does something to the world."""
        effect(EFFECTS[name], idempotency_key)
        return f"did {n}"

    return holdfast.Tool(act, contract=CONTRACTS[name])


class LedgerWorkspace(Workspace):
    """A workspace with a tool of the right name."""

    @property
    def tools(self):
        async def act(n: int) -> str:
            """Adds a line."""
            return await self.shell(f"echo {n} >> ledger; wc -l < ledger")

        return [holdfast.Tool(act)]


def workspace(task: holdfast.Task) -> LedgerWorkspace:
    root = f"{os.environ['HOLDFAST_EFFECTS']}.workspaces"
    return LedgerWorkspace({"readme": "act"}, sandbox="none", root=root)


async def has_worked(t: holdfast.Rollout, episodes) -> float:
    action = episodes[0].environment.scoring("test -s ledger", keep=["ledger"])
    return (await episodes[0].step(action)).reward


def processors(**options: object) -> dict[str, BlackBoxRolloutProcessor]:
    latest = WorkspaceWorld(workspace, restore="latest")
    return {
        **{
            name: BlackBoxRolloutProcessor(WITH_TOOLS, tools=[acting(name)], **options)
            for name in CONTRACTS
        },
        "home": BlackBoxRolloutProcessor(
            WITH_HANDS,
            world=latest,
            resume_command=[*WITH_HANDS, "--resume"],
            finish=has_worked,
            **options,
        ),
        "start": BlackBoxRolloutProcessor(
            WITH_HANDS, world=WorkspaceWorld(workspace), finish=has_worked, **options
        ),
        "shell": BlackBoxRolloutProcessor(WITH_TOOLS, environments=[workspace], **options),
    }


class AnyWorld(holdfast.RolloutProcessor):
    """One processor, and so one gateway, for each kind."""

    async def setup(self) -> None:
        pids = {"PID_FILE": f"{os.environ['HOLDFAST_EFFECTS']}.pids"}
        self._agents = processors(env=pids)
        for agent in self._agents.values():
            await agent.setup()

    async def acleanup(self) -> None:
        for agent in self._agents.values():
            await agent.acleanup()

    async def rollout(self, t: holdfast.Rollout) -> Returned:
        return await self._agents[t.task.id.rstrip("0123456789")].rollout(t)


solve = AnyWorld()


def score(trajectory: holdfast.TrajectoryView) -> float:
    letters = sum(len(turn.step.message.text) for turn in trajectory.turns)
    return letters / 100 + sum(trajectory.step_rewards)
