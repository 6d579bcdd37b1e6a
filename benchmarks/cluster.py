"""Workers on a cluster: CPU of a turn, against the same run in one process on the same journal.

Two runs of each, a short and a long one: what both take to start is in neither figure. A PostgreSQL
server and a Ray cluster of two nodes are started on this machine for it.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from result import Result

from holdfast.testing import FakeEngine
from support.cluster.own_postgres import OwnPostgres  # type: ignore[import-not-found]
from support.cluster.simulated import SimulatedCluster  # type: ignore[import-not-found]

SHORT, LONG, SAMPLES, TURNS = 16, 96, 4, 12
DELAY = 0.1
"""Seconds that the engine takes for a reply: without it, both would only wait for the processor."""
BOUND = 1.3
ROLLOUT = f"""
async def rollout(t):
    t.add(*t.task.messages)
    for turn in range({TURNS}):
        await t.generate(max_tokens=64)
        t.add(f"go on, {{turn}}")
"""


def measure() -> Iterator[Result]:
    with (
        tempfile.TemporaryDirectory() as folder,
        OwnPostgres() as postgres,
        FakeEngine(mean_length=0, delay=DELAY) as engine,
        SimulatedCluster(2, cpus=1) as cluster,
    ):
        lab = _Lab(Path(folder), postgres.url, engine)
        single = lab.per_turn("single", "--concurrency", "64")
        workers = lab.per_turn(
            "workers",
            "--cluster",
            cluster.address,
            "--workers",
            "2",
            "--concurrency",
            "32",
        )
    ratio = workers / single
    yield Result(
        "cluster: CPU per turn of Ray workers, against one process",
        ratio,
        unit="×",
        bound=f"≤ {BOUND}",
        detail=f"{workers * 1e3:.2f} ms against {single * 1e3:.2f} ms, on PostgreSQL",
    )


class _Lab:
    def __init__(self, folder: Path, journal: str, engine: FakeEngine):
        self._folder, self._journal, self._engine = folder, journal, engine
        (folder / "agent.py").write_text(ROLLOUT)
        for count in (SHORT, LONG):
            lines = (json.dumps({"id": f"t{n}", "prompt": f"do {n}"}) for n in range(count))
            (folder / f"{count}.jsonl").write_text("\n".join(lines) + "\n")

    def per_turn(self, name: str, *more: str) -> float:
        """Seconds of CPU."""
        short, long = (self._run(f"{name}-{count}", count, more) for count in (SHORT, LONG))
        return (long - short) / ((LONG - SHORT) * SAMPLES * TURNS)

    def _run(self, run: str, tasks: int, more: tuple[str, ...]) -> float:
        words = [
            "run", "agent.py", "--tasks", f"{tasks}.jsonl", "--samples", str(SAMPLES), "--run", run,
            "--policy", self._engine.url, "--model", self._engine.model, "--seed", "1", "--quiet",
            "--journal", self._journal, *more,
        ]  # fmt: skip
        before = _children_cpu()
        logs = self._folder / "logs"
        subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            check=True, cwd=self._folder, capture_output=True,
            env=os.environ | {"HOLDFAST_LOGS": str(logs)},
        )  # fmt: skip
        own = _children_cpu() - before
        return _logged_cpu(logs, run) if "--cluster" in more else own


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _logged_cpu(logs: Path, run: str) -> float:
    """What the workers took, with their actors, by the log of the command."""
    text = "".join(path.read_text() for path in logs.glob(f"{run}-*/driver-*.log"))
    return sum(float(found) for found in re.findall(r"took ([\d.]+) s of CPU", text))
