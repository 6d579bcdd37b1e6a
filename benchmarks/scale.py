"""10,000 trajectories in flight in one process: memory each, and whether the cost stays flat."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent


def measure() -> list[Result]:
    with FakeEngine(mean_length=0) as engine:
        small, large = _child(engine.url, 1_000), _child(engine.url, 10_000)
    return [
        Result("scale: memory per trajectory in flight, 10,000 at once", large["kb_each"], "KB",
               "≤ 40", f"peak {large['peak_mb']:.0f} MB"),
        Result("scale: CPU per trajectory, 10,000 / 1,000 in flight",
               large["cpu_ms"] / small["cpu_ms"], "×", "≤ 1.3",
               f"{large['cpu_ms']:.2f} ms and {small['cpu_ms']:.2f} ms"),
    ]  # fmt: skip


def _child(url: str, trajectories: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "scale_child.py"), url, folder, str(trajectories)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found
