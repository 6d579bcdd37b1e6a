"""The environment loop: CPU per turn against a bare loop over the same environment and client, and
what a turn costs when there were a thousand before it.

The bare loops use the same `EnginePolicy` and call the same environment directly; they keep nothing
and recover from nothing. The long one is compared window by window: the prompt that has to be sent
grows for both sides, so what is held flat is what Holdfast adds to it.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent
ROUNDS = 5
LONG_ROUNDS = 3


def measure() -> list[Result]:
    with FakeEngine(mean_length=0) as engine:
        return [*_loops(engine.url), *_long(engine.url)]


def _loops(url: str) -> list[Result]:
    """32 turns of 256 tokens, 128 at once. What disturbs only adds: the least of the rounds."""
    kinds = {"bare": [], "durable": [], "durable-blocking": []}  # type: dict[str, list[float]]
    for _ in range(ROUNDS):
        for kind, taken in kinds.items():
            taken.append(_child(kind, url)["turn"])
    bare, durable, blocking = (min(taken) for taken in kinds.values())
    name, detail = "environment: CPU per turn / bare loop", f"bare {bare * 1e3:.2f} ms a turn"
    return [
        Result(f"{name}, async or inline", durable / bare, "×", "≤ 1.5", detail),
        Result(f"{name}, blocking", blocking / bare, "×", "", "each world in a thread of its own"),
    ]


def _long(url: str) -> list[Result]:
    growth, early, late = [], [], []
    for _ in range(LONG_ROUNDS):
        bare, durable = _child("bare-long", url), _child("durable-long", url)
        early.append(durable["early"] - bare["early"])
        late.append(durable["late"] - bare["late"])
        growth.append(durable["bytes_late"] / durable["bytes_early"])
    detail = (
        f"{statistics.median(early) * 1e3:.2f} ms added to turns 100–200, "
        f"{statistics.median(late) * 1e3:.2f} to turns 900–1,000"
    )
    added = statistics.median(late) / statistics.median(early)
    return [
        Result("environment: CPU added at turn 1,000 / at turn 100", added, "×", "≤ 1.5", detail),
        Result(
            "environment: bytes kept at turn 1,000 / at turn 100",
            statistics.median(growth), "×", "≤ 1.2",
        ),
    ]  # fmt: skip


def _child(mode: str, url: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "environment_child.py"), mode, url, folder],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found
