"""Worlds that are served over HTTP, also by a process that the tests start and kill.

A world writes down what is really done to it, in the file that its task names.
"""

import asyncio
import sys
import time
from pathlib import Path

from holdfast import ToolSaysNo, tool
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery


class Ledger(Environment):
    """Adds up what it is given. The task: {"log": FILE, "broken": what is to raise}."""

    timeout = 20.0

    def __init__(self, task: object):
        self._task = task if isinstance(task, dict) else {}
        self._total = 0

    def _did(self, what: str) -> None:
        if "log" in self._task:
            with Path(self._task["log"]).open("a") as log:
                log.write(f"{what}\n")
        if self._task.get("broken") == what.partition(" ")[0]:
            raise RuntimeError(f"{what} is broken; my token is {self._task.get('secret', 'none')}")

    @property
    def tools(self):
        return [self.add, tool(contract="idempotent")(self.keyed)]

    def reset(self, *, seed: int) -> str:
        self._did(f"reset {seed}")
        self._total = seed
        return f"total {self._total}"

    def step(self, action: str) -> Observation:
        self._did(f"step {action}")
        word, _, amount = action.partition(" ")
        match word:
            case "add":
                self._total += int(amount)
            case "no":
                raise ToolSaysNo(f"not {amount}")
            case "exit":
                sys.exit(3)
            case "hold":
                while Path(amount).exists():
                    time.sleep(0.01)
            case "sleep":
                time.sleep(float(amount))
            case "big":
                return Observation("ü" * int(amount))
            case "nan":
                return Observation("", reward=float("nan"))
            case "surrogate":
                return Observation("a\udc80b", info={"n": [1, "x"]})
        return Observation(
            f"total {self._total}",
            reward=self._total / 8,
            done=self._total > 1000,
            truncated=self._total < -1000,
            info={"total": self._total, "words": [action]},
        )

    def add(self, amount: int, limit: int = 100) -> str:
        """Adds an amount."""
        self._did(f"add {amount}")
        if amount > limit:
            raise ToolSaysNo(f"more than {limit}")
        self._total += amount
        return f"total {self._total}"

    def keyed(self, amount: int, idempotency_key: str) -> str:
        """Shows the key of its call."""
        return f"{amount} {idempotency_key}"

    def close(self) -> None:
        self._did("close")


class KeptLedger(Ledger):
    """The same, which comes back by snapshot."""

    recovery = Recovery.SNAPSHOT

    def snapshot(self) -> bytes:
        self._did("snapshot")
        return b"\xff%d" % self._total

    def restore(self, state: bytes) -> None:
        self._did("restore")
        self._total = int(state[1:])


class AsyncLedger(Environment):
    """One that lives on the event loop."""

    timeout = 20.0

    def __init__(self, task: object):
        self.began = self.cancelled = False
        self.closed = 0

    async def reset(self, *, seed: int) -> str:
        return f"began {seed}"

    async def step(self, action: str) -> str:
        self.began = True
        try:
            await asyncio.sleep(float(action))
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return f"slept {action}"

    async def close(self) -> None:
        self.closed += 1
