"""A small training in a process of its own, for tests that kill, freeze and resume it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast.journal import open_journal
from holdfast.records.step import Generated
from holdfast.training.run.metrics import read
from support.paths import EXAMPLES

STEPS, GROUPS, SAMPLES = 3, 2, 2
CLOCKS = ("seconds", "trainer_seconds")
RUN = "first"


class Training:
    """`holdfast train` in `folder`, with the tiny model on the embedded engine."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.out = folder / "out"
        self.journal = folder / "journal.db"
        rows = (EXAMPLES / "arithmetic.jsonl").read_text().splitlines()
        (folder / "train.jsonl").write_text("\n".join(rows[:5]))
        (folder / "held_out.jsonl").write_text("\n".join(rows[5:7]))

    def command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "holdfast", "train", str(EXAMPLES / "calculator.py")),
            *("--tasks", "train.jsonl", "--eval-tasks", "held_out.jsonl", "--eval-every", "2"),
            *("--run", RUN, "--out", str(self.out), "--journal", str(self.journal)),
            *("--steps", str(STEPS), "--groups", str(GROUPS), "--samples", str(SAMPLES)),
            *("--max-tokens", "48", *more),
        ]

    def start(self, *more: str, crash: str = "", **env: str) -> "subprocess.Popen[str]":
        """One thread: the bits of a sum depend on how many there are."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        if crash:
            env["HOLDFAST_CRASH"] = crash
        return subprocess.Popen(
            self.command(*more),
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def train(self, *more: str, crash: str = "", **env: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        process = self.start(*more, crash=crash, **env)
        out, err = process.communicate()
        return process.returncode, out, err

    def metrics(self) -> list[dict[str, Any]]:
        """Everything but clocks."""
        return [
            {name: value for name, value in line.items() if name not in CLOCKS}
            for line in read(self.out / "metrics.jsonl")
        ]

    def final(self) -> dict[str, bytes]:
        """The files that hold what was learned."""
        weights = self.out / "weights" / f"step-{STEPS}" / "model.safetensors"
        saved = self.out / "checkpoints" / f"step-{STEPS:08d}"
        return {
            "published": weights.read_bytes(),
            "weights": (saved / "weights.safetensors").read_bytes(),
            "optimizer": (saved / "optimizer.safetensors").read_bytes(),
        }

    def ledger(self) -> list[Any]:
        """What became of each group, and the versions."""
        return asyncio.run(self._ledger())

    async def _ledger(self) -> list[Any]:
        journal = open_journal(str(self.journal))
        try:
            run = await journal.find_run(RUN)
            assert run is not None
            groups = await journal.ledger(run, "trainer")
            versions = await journal.versions(run)
            return [
                [(g.task, str(g.end), g.step, g.reason) for g in groups],
                [(v.ordinal, v.name, v.step, v.digest) for v in versions],
            ]
        finally:
            await journal.close()

    def turns(self) -> dict[str, list[Generated]]:
        """Each durable turn, by trajectory, of the training and of its evaluations."""
        return asyncio.run(self._turns())

    async def _turns(self) -> dict[str, list[Generated]]:
        journal = open_journal(str(self.journal))
        try:
            found = {}
            for row in await journal.runs():
                run = await journal.find_run(row.name)
                assert run is not None
                async for trajectory, records in journal.histories(run):
                    turns = [record for record in records if isinstance(record, Generated)]
                    found[str(trajectory.key)] = turns
            return found
        finally:
            await journal.close()

    def sampled(self) -> dict[str, list[tuple[Any, ...]]]:
        """What is the same for every way in which the training went."""
        return {
            key: [(turn.path, turn.ids, turn.logprobs, turn.versions) for turn in turns]
            for key, turns in self.turns().items()
        }


def children(pid: int) -> list[int]:
    """Of any of its threads."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in found for child in path.read_text().split()]


def one_line(text: str) -> str:
    """The error that a command ended with; nothing beside it."""
    (line,) = text.strip().splitlines()
    return line
