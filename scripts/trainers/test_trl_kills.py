"""SIGKILL of a TRL training at every phase between two checkpoints, resumed by TRL's own
`resume_from_checkpoint`: no durable turn is generated again, each group is in the history of the
final model once, and the model has the bits of one that was never killed."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.records.history import History

PROGRAM = Path(__file__).parent / "killed_trl.py"
STEPS, GROUPS, SAMPLES = 4, 2, 4
KILLS = {
    "weights are with the engine": "trl.published:3",
    "tasks are admitted": "stream.admitted:3",
    "in the middle of the rollouts": "after:75",
    "rollouts are settled": "stream.settled:3",
    "groups are reserved": "stream.reserved:4",
    "TRL has its rows": "trl.answered:3",
    "the checkpoint is written": "stream.commit:1",
    "the ledger knows of it": "stream.committed:1",
}
FEW = ("in the middle of the rollouts", "TRL has its rows", "the checkpoint is written")
CHOSEN = KILLS if os.environ.get("HOLDFAST_EXHAUSTIVE") else {name: KILLS[name] for name in FEW}


class Training:
    """The example with a folder and a journal of its own."""

    def __init__(self, folder: Path):
        self.out = folder / "out"
        self.journal = folder / "holdfast.db"

    def run(self, **environment: str) -> int:
        words = ["--out", self.out, "--journal", self.journal, "--log-requests"]
        words += ["--steps", STEPS, "--groups", GROUPS, "--samples", SAMPLES, "--save-steps", 2]
        return subprocess.run(
            [sys.executable, str(PROGRAM), *map(str, words)],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            check=False,
        ).returncode

    def weights(self) -> bytes:
        return (self.out / f"checkpoint-{STEPS}" / "model.safetensors").read_bytes()

    def requests(self) -> list[str]:
        log = self.out / "holdfast" / "engine.log"
        text = log.read_text() if log.exists() else ""
        return re.findall(r"^request '(.*)'$", text, re.MULTILINE)

    def ledger(self) -> list[tuple[str, str, int | None]]:
        async def read():
            journal = holdfast.open_journal(self.journal, read_only=True)
            try:
                run = await journal.find_run("trl")
                return [(g.task, str(g.end), g.step) for g in await journal.ledger(run, "trainer")]
            finally:
                await journal.close()

        return asyncio.run(read())

    def turns(self) -> dict[str, bytes]:
        """The ids of every durable turn, by its place."""

        async def read():
            journal = holdfast.open_journal(self.journal, read_only=True)
            found = {}
            try:
                run = await journal.find_run("trl")
                async for row, records in journal.histories(run):
                    for step in History(records).generations:
                        found[f"{row.key}/{step.path}"] = step.ids
                return found
            finally:
                await journal.close()

        return asyncio.run(read()) if self.journal.exists() else {}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Training:
    training = Training(tmp_path_factory.mktemp("undisturbed"))
    assert training.run() == 0
    return training


def check(training: Training, undisturbed: Training, *, durable: dict[str, bytes]) -> None:
    before = len(training.requests())
    assert training.run() == 0
    turns = training.turns()
    assert turns == undisturbed.turns()
    again = training.requests()[before:]
    assert not [name for name in again if any(name.endswith(turn) for turn in durable)], "again"
    assert training.weights() == undisturbed.weights()
    ledger = training.ledger()
    assert ledger == undisturbed.ledger()
    assert len(ledger) == STEPS * GROUPS
    for task, end, step in ledger:
        assert (end, f"step-{step}") == ("trained", task[: len(f"step-{step}")])


@pytest.mark.parametrize("phase", CHOSEN)
def test_a_kill_at_any_phase_changes_nothing(tmp_path, undisturbed, phase):
    training = Training(tmp_path)
    assert training.run(HOLDFAST_CRASH=KILLS[phase]) == -signal.SIGKILL
    check(training, undisturbed, durable=training.turns())


def test_a_kill_while_transformers_writes_a_checkpoint(tmp_path, undisturbed):
    training = Training(tmp_path)
    assert training.run(KILL_WHILE_SAVING="2") == -signal.SIGKILL
    check(training, undisturbed, durable=training.turns())
