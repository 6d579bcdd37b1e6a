"""Environments for tests: a counter in all recovery levels, and ways in which one misbehaves."""

import random

from holdfast.records.errors import ToolSaysNo
from holdfast.rollout.episodes.environment import Environment, Observation

CALLS: list[str] = []
"""Everything that was called in any of them, in order."""


class Counter(Environment):
    """Adds what it is told to a number that begins with its seed's last digit."""

    def __init__(self, recovery: str = "replay", *, goal: int = 100):
        self.recovery = recovery
        self.goal = goal
        self.number: int | None = None

    def reset(self, *, seed: int) -> Observation:
        CALLS.append("reset")
        self.number = seed % 10
        return Observation(f"at {self.number}", info={"seed": seed})

    def step(self, action: str) -> Observation:
        CALLS.append(f"step {action}")
        if not action.isdigit():
            raise ToolSaysNo("say a number")
        self.number += int(action)
        return Observation(f"at {self.number}", float(action), done=self.number >= self.goal)

    def close(self) -> None:
        CALLS.append("close")

    def snapshot(self) -> bytes:
        CALLS.append("snapshot")
        return str(self.number).encode()

    def restore(self, state: bytes) -> None:
        CALLS.append(f"restore {state.decode()}")
        self.number = int(state)

    @property
    def tools(self):
        return (self.add,)

    def add(self, amount: int) -> str:
        """Adds an amount."""
        CALLS.append(f"add {amount}")
        if amount < 0:
            raise ToolSaysNo("only forward")
        self.number += amount
        return f"now {self.number}"


class AsyncCounter(Counter):
    async def reset(self, *, seed: int) -> Observation:
        return super().reset(seed=seed)

    async def step(self, action: str) -> Observation:
        return super().step(action)

    async def close(self) -> None:
        super().close()

    async def add(self, amount: int) -> str:
        """Adds an amount."""
        return super().add(amount)


class Fickle(Counter):
    """Never gives the same answer twice."""

    def step(self, action: str) -> Observation:
        seen = super().step(action)
        return Observation(f"{seen.text} {random.random()}", seen.reward, seen.done)


class Broken(Counter):
    """Raises in one of its methods."""

    def __init__(self, where: str, error: BaseException | None = None, **options):
        super().__init__(**options)
        self.where = where
        self.error = error or RuntimeError(f"a fault in {where}")

    def _may(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def reset(self, *, seed: int) -> Observation:
        seen = super().reset(seed=seed)
        self._may("reset")
        return seen

    def step(self, action: str) -> Observation:
        seen = super().step(action)
        self._may("step")
        return seen

    def close(self) -> None:
        super().close()
        self._may("close")

    def snapshot(self) -> bytes:
        self._may("snapshot")
        return super().snapshot()


async def play_three(t, make=Counter):
    episode = await t.env(make())
    for action in ("1", "2", "3"):
        await episode.step(action)
    return episode
