"""10,000 trajectories in flight in one process: memory each, and whether the cost stays flat.

`--full`: 100,000 that wait for their first reply, of which as many have a connection as the limit
of open files allows; commands on a run of 110,000; and the first request of a run that continues
with 1,000,000 finished trajectories. It takes half an hour and 3 GB of disk.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from result import Result

from holdfast.testing import FakeEngine
from holdfast.testing.fake_engine.faults import Fault, FaultKind

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


def measure_full() -> list[Result]:
    hold = Fault(FaultKind.HOLD, matching="bench/", times=0)
    with FakeEngine(mean_length=0, faults=[hold]) as engine:
        waiting = _child(engine.url, 100_000, "first")
    return [
        Result("scale: memory per trajectory that waits for its first reply", waiting["kb_each"],
               "KB", "≤ 12", f"100,000 at once, peak {waiting['peak_mb']:,.0f} MB"),
        *_large(100_000, 10_000, commands=True),
        *_large(1_000_000, 10_000),
    ]  # fmt: skip


def _large(finished: int, unfinished: int, *, commands: bool = False) -> list[Result]:
    """What commands cost on a run of this size."""
    with tempfile.TemporaryDirectory(dir=".") as name, FakeEngine(mean_length=0) as engine:
        folder = Path(name)
        command = [sys.executable, str(HERE / "large_run.py"), engine.url, name]
        subprocess.run([*command, str(finished), str(unfinished)], check=True)
        results = []
        for words in (["runs"], ["show", "bench"], ["report", "bench"]) if commands else ():
            more = ["--out", str(folder / "report.html")] if words[0] == "report" else []
            cpu = _cpu([*words, *more, "--journal", str(folder / "journal.db")])
            results.append(Result(f"scale: holdfast {words[0]}, {finished:,}", cpu, "s CPU", ""))
        cpu, memory = _first_request(engine, folder)
    title = f"scale: first request after a restart, {finished:,} + {unfinished:,}"
    return [*results, Result(title, cpu, "s CPU", "", f"{memory:,.0f} MB")]


def _cpu(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "holdfast", *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _first_request(engine: FakeEngine, folder: Path) -> tuple[float, float]:
    """Returns the CPU seconds of the run until then, and the most memory in MB."""
    engine.reset()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", str(folder / "agent.py"), "--run", "bench",
         "--tasks", str(folder / "tasks.jsonl"), "--policy", engine.url, "--model", "fake",
         "--seed", "1", "--journal", str(folder / "journal.db"), "--quiet"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while engine.stats().requests == 0:
            if process.poll() is not None:
                raise RuntimeError("the resumed run ended before its first request")
            time.sleep(0.02)
        times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{process.pid}/status").read_text()
        most = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        ticks = os.sysconf("SC_CLK_TCK")
        return (int(times[11]) + int(times[12])) / ticks, int(most.split()[1]) / 1024
    finally:
        process.kill()
        process.wait()


def _child(url: str, trajectories: int, *more: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        done = subprocess.run(
            [sys.executable, str(HERE / "scale_child.py"), url, folder, str(trajectories), *more],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found
