"""`holdfast train` on the example: CPU of the command with its engine, and of reading its samples.

16 tasks × 8 samples a step, the model that comes with Holdfast on the embedded engine, 200 held-out
tasks before the first step and after every tenth. Few steps are run; what 40 cost follows from what
one step and one evaluation cost. The CPU is that of the command and of its children, user and
system, with one thread for each (`OMP_NUM_THREADS=1`).

A journal gives the samples of a step, checked and ready to be packed; that is compared with the
trainer's step on them.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from result import Result

from holdfast.embedded.model.files import TINY
from holdfast.journal import open_journal
from holdfast.training.batch import TrainingGroup, load_group
from holdfast.training.objective.objective import PRESETS
from holdfast.training.settings import OptimizerSettings, TrainerSettings
from holdfast.training.trainer import Trainer

EXAMPLES = Path(__file__).parents[1] / "examples"
WHOLE, STEPS, EVALUATIONS = 40, 3, 5
GROUPS, SAMPLES, HELD_OUT = 16, 8, 200
RUN = "bench"
ROUNDS = 3
_TICKS = os.sysconf("SC_CLK_TCK")


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        return [_example(folder), _reading(folder / "journal.db")]


def _example(folder: Path) -> Result:
    command = [
        *(sys.executable, "-m", "holdfast", "train", str(EXAMPLES / "calculator.py")),
        *("--tasks", str(EXAMPLES / "train.jsonl")),
        *("--eval-tasks", str(EXAMPLES / "held_out.jsonl"), "--run", RUN),
        *("--out", "out", "--journal", "journal.db", "--steps", str(STEPS)),
        *("--groups", str(GROUPS), "--samples", str(SAMPLES)),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    marks = list(_marks(process))
    assert process.stderr is not None
    error = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, error
    *steps, last = (after - before for before, after in pairwise(marks))
    step, total = statistics.median(steps), usage.ru_utime + usage.ru_stime
    whole = total + (WHOLE - STEPS) * step + (EVALUATIONS - 2) * last
    detail = (
        f"from {STEPS} steps: {step:.1f} s a step, {last:.1f} s an evaluation of {HELD_OUT} tasks, "
        f"{marks[0] - last:.1f} s to start"
    )
    name = f"training: CPU of {WHOLE} steps of the example"
    return Result(name, whole / 60, "min", "≤ 8", detail)


def _marks(process: "subprocess.Popen[str]") -> Iterator[float]:
    """CPU seconds at each line: the first evaluation, each step, the last evaluation."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            yield sum(_cpu_of(pid) for pid in _family(process.pid))
    process.stdout.close()


def _family(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            yield from _family(int(child))


def _cpu_of(pid: int) -> float:
    """Of a process, its threads and those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


# --- reading


def _reading(path: Path) -> Result:
    torch.set_num_threads(1)
    settings = TrainerSettings(PRESETS["grpo"], OptimizerSettings(learning_rate=1e-5))
    trainer = Trainer(TINY, settings)
    reads, steps = [], []
    for _ in range(ROUNDS):
        groups, seconds = asyncio.run(_read(path))
        reads.append(seconds)
        began = time.process_time()
        trainer.step(groups)
        steps.append(time.process_time() - began)
    share = 100 * statistics.median(r / s for r, s in zip(reads, steps, strict=True))
    detail = (
        f"{statistics.median(reads) * 1e3:.0f} ms of CPU for {GROUPS * SAMPLES} trajectories, "
        f"{statistics.median(steps):.2f} s for the trainer's step alone"
    )
    return Result("training: reading samples / a trainer's step", share, "%", "≤ 5", detail)


async def _read(path: Path) -> tuple[list[TrainingGroup], float]:
    journal = open_journal(str(path))
    try:
        run = await journal.find_run(RUN)
        assert run is not None
        rows = await journal.trajectories(run)
        began = time.process_time()
        groups = [
            await load_group(journal, rows[start : start + SAMPLES])
            for start in range(0, GROUPS * SAMPLES, SAMPLES)
        ]
        return groups, time.process_time() - began
    finally:
        await journal.close()
