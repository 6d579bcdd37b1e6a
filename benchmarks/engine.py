"""The engine: CPU per turn of a full durable run, against a bare loop with the same traffic.

256 at once, 256-token completions with ids and logprobs. The bare loop sends the same requests
with the same aiohttp and parses the same answers with msgspec; it keeps nothing. Measured as the
command line runs it, in a loop and a process of our own, with rare garbage collections; and as a
library call, which changes nothing about its host's collector.
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
MODES = ("bare", "library", "command")


def measure() -> list[Result]:
    with FakeEngine(mean_length=0) as engine:
        rounds = [{mode: _child(mode, engine.url) for mode in MODES} for _ in range(ROUNDS)]
    return [
        _compare(rounds, "command", "engine: CPU per turn / bare aiohttp"),
        _compare(rounds, "library", "engine: the same in a user's own loop"),
    ]


def _compare(rounds: list[dict[str, float]], mode: str, name: str) -> Result:
    ours, bare = (statistics.median(one[which] for one in rounds) for which in (mode, "bare"))
    ratio = statistics.median(one[mode] / one["bare"] for one in rounds)
    detail = f"{ours * 1e3:.2f} ms a turn, bare {bare * 1e3:.2f}"
    return Result(name, ratio, "×", "≤ 1.5", detail)


def _child(mode: str, url: str) -> float:
    """CPU seconds per turn, in a process of its own so that neither warms the other up."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "engine_child.py"), mode, url, folder],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(done.stdout)["cpu_per_turn"])
