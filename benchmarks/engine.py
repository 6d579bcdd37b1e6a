"""The engine: CPU per turn of a full durable run, against a bare loop with the same traffic.

256 at once, 256-token completions with ids and logprobs. The bare loop sends the same requests
with the same aiohttp and parses the same answers with msgspec; it keeps nothing.
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
TURNS = 4
TRAJECTORIES = 1024
ROUNDS = 5


def measure() -> list[Result]:
    ratios, ours, theirs = [], [], []
    with FakeEngine(mean_length=0) as engine:
        for _ in range(ROUNDS):
            bare = _child("bare", engine.url)
            durable = _child("durable", engine.url)
            ratios.append(durable / bare)
            ours.append(durable)
            theirs.append(bare)
    detail = (
        f"{statistics.median(ours) * 1e3:.2f} ms a turn, bare {statistics.median(theirs) * 1e3:.2f}"
    )
    return [
        Result(
            "engine: CPU per turn / bare aiohttp", statistics.median(ratios), "×", "≤ 1.5", detail
        )
    ]


def _child(mode: str, url: str) -> float:
    """CPU seconds per turn, in a process of its own so that neither warms the other up."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "engine_child.py"), mode, url, folder],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(done.stdout)["cpu_per_turn"])
