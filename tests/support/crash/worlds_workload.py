"""The crash suite's environments: every processor and recovery level, chosen by the task's id.

The policy's replies are drawn from `REPLIES`, whatever the task: a number is an action, a call is
for those that have the tool and an unknown tool to the others, so that refusals are met, too.
"""

import holdfast
from holdfast.rollout.processors.processor import Returned
from support.crash.workload import effect, look_up, pay

REPLIES = (
    "{n}",
    "well, {n}",
    '<tool_call>{"name": "add", "arguments": {"amount": {n}}}</tool_call>',
    (
        '<tool_call>{"name": "look_up", "arguments": {"word": "kelp {n}"}}</tool_call>'
        '<tool_call>{"name": "add", "arguments": {"amount": {n}}}</tool_call>'
        '<tool_call>{"name": "add", "arguments": {"amount": 1}}</tool_call>'
    ),
    '<tool_call>{"name": "add", "arguments": {"amount": "{n}"}}</tool_call>',
)


class Ladder(holdfast.Environment):
    """Climbs by what it is told; falls on a number that its seed forbids."""

    def __init__(self, name: str, recovery: str):
        self.world = name
        self.recovery = recovery
        self.height = self.seed = 0

    def reset(self, *, seed: int) -> holdfast.Observation:
        self.seed, self.height = seed, seed % 7
        return holdfast.Observation(f"on rung {self.height}")

    def step(self, action: str) -> holdfast.Observation:
        digits = "".join(filter(str.isdigit, action))
        if not digits:
            raise holdfast.ToolSaysNo("say how far")
        return self._climb(int(digits))

    def _climb(self, rungs: int) -> holdfast.Observation:
        effect(f"{self.recovery}_climb", f"{self.world} {rungs}")
        fell = (rungs + self.seed) % 3 == 0
        stands_at = 0 if self.recovery == "stateless" else self.height
        self.height = 0 if fell else stands_at + rungs
        return holdfast.Observation(
            f"on rung {self.height}", -1.0 if fell else rungs / 100, done=self.height > 150
        )

    def snapshot(self) -> bytes:
        return f"{self.seed} {self.height}".encode()

    def restore(self, state: bytes) -> None:
        self.seed, self.height = map(int, state.split())

    @property
    def tools(self):
        return (self.add,)

    async def add(self, amount: int) -> str:
        """Climbs an amount of rungs."""
        return self._climb(amount).text


class AnyWorld(holdfast.RolloutProcessor):
    """`agent-replay0` is an agent whose world comes back by replay, and so on."""

    async def rollout(self, t: holdfast.Rollout) -> Returned:
        kind, _, level = t.task.id.rstrip("0123456789").partition("-")
        return await getattr(self, kind)(level).rollout(t)

    def player(self, level: str) -> holdfast.RolloutProcessor:
        return holdfast.EnvironmentRolloutProcessor(
            lambda task: Ladder(task.id, level), system_prompt="climb", max_turns=4
        )

    def agent(self, level: str) -> holdfast.RolloutProcessor:
        async def measured(t, episodes):
            await episodes[0].step("3")
            return episodes[0].total_reward

        return holdfast.AgentRolloutProcessor(
            [look_up],
            environments=[lambda task: Ladder(task.id, level)],
            max_turns=4,
            max_tokens=400,
            finish=measured,
        )

    def buyer(self, level: str) -> holdfast.RolloutProcessor:
        return holdfast.AgentRolloutProcessor([look_up, pay], max_turns=3)

    def dialogue(self, level: str) -> holdfast.RolloutProcessor:
        return holdfast.DialogueRolloutProcessor(
            lambda task: "You want to climb.", tools=[look_up], stop="well", max_turns=3
        )


solve = AnyWorld()


def score(trajectory: holdfast.TrajectoryView) -> float:
    letters = sum(len(turn.step.message.text) for turn in trajectory.turns)
    return letters / 100 + sum(trajectory.step_rewards)
