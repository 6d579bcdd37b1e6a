"""TRL's own `AsyncGRPOTrainer` on durable rollouts, killed by SIGKILL at every phase and resumed by
its own `resume_from_checkpoint`: no durable turn is generated again, each row is in the history of
the final model once, and the ledger says the same. The history is noted by TRL's own collator and
training step; see `async_trl.py`."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast.convert.trl import to_trl_async
from holdfast.records.history import History
from holdfast.training.run.batches import load_group

PROGRAM = Path(__file__).parent / "async_trl.py"
STEPS = 6
KILLS = {
    "weights have a name": "trl.published:4",
    "tasks are admitted": "stream.admitted:5",
    "in the middle of the rollouts": "after:60",
    "rows are queued": "trl.queued:6",
    "a step after the checkpoint is trained": "trl.trained:3",
    "the second checkpoint is written": "stream.commit:2",
    "the ledger knows of it": "stream.committed:2",
}
FEW = (
    "rows are queued",
    "a step after the checkpoint is trained",
    "the second checkpoint is written",
)
CHOSEN = KILLS if os.environ.get("HOLDFAST_EXHAUSTIVE") else {name: KILLS[name] for name in FEW}


class Training:
    """The program with a folder, a journal and a history of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.out = folder / "out"
        self.journal = folder / "holdfast.db"
        self._kept: list[tuple[int, str]] = []

    def run(self, *words: object, crash: str | None = None) -> int:
        """Ends with its exit status. What an earlier life trained after its last whole checkpoint
        is in no model's history."""
        self._kept = [line for line in self.history() if line[0] <= self.checkpoint()]
        (self.folder / "history").unlink(missing_ok=True)
        own = ["--out", self.out, "--journal", self.journal, "--history", self.folder / "history"]
        environment = {"HOLDFAST_CRASH": crash} if crash else {}
        return subprocess.run(
            [sys.executable, str(PROGRAM), *map(str, [*own, "--steps", STEPS, *words])],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            check=False,
        ).returncode

    def checkpoint(self) -> int:
        whole = self.out.glob("checkpoint-*/trainer_state.json")
        return max([int(path.parent.name.rpartition("-")[2]) for path in whole], default=0)

    def split(self) -> dict[str, list[int]]:
        """Groups of which the newest whole checkpoint has trained some rows, and not all."""
        file = self.out / f"checkpoint-{self.checkpoint()}" / "trainer_state.json"
        state = json.loads(file.read_text())["stateful_callbacks"]["HoldfastCallback"]
        return state["attributes"]["split"]

    def history(self) -> list[tuple[int, str]]:
        """Step and row, for each row that the model has been trained on."""
        file = self.folder / "history"
        lines = file.read_text().splitlines() if file.exists() else []
        return self._kept + [(step, row) for step, row in map(json.loads, lines)]

    def requests(self) -> list[str]:
        log = self.out / "holdfast" / "engine.log"
        text = log.read_text() if log.exists() else ""
        return re.findall(r"^request '(.*)'$", text, re.MULTILINE)

    def ledger(self):
        return asyncio.run(self._read(lambda journal, run: journal.ledger(run, "trainer")))

    def turns(self) -> dict[str, bytes]:
        """The ids of every durable turn, by its place."""

        async def read(journal, run):
            found = {}
            async for row, records in journal.histories(run):
                for step in History(records).generations:
                    found[f"{row.key}/{step.path}"] = step.ids
            return found

        return asyncio.run(self._read(read)) if self.journal.exists() else {}

    def rows(self) -> dict[int, Counter[str]]:
        """The rows of each settled group, by its number, named as the history names them."""

        async def read(journal, run):
            versions = await journal.versions(run)
            groups: dict[int, list] = {}
            for row in await journal.trajectories(run):
                groups.setdefault(row.ordinal, []).append(row)
            found = {}
            for number, members in groups.items():
                if all(member.settled for member in members):
                    group = await load_group(journal, members)
                    samples = [s for t in group.trajectories for s in t.samples]
                    made = to_trl_async(samples, versions=versions, first_group=number)
                    found[number] = Counter(name(fields) for fields in made)
            return found

        return asyncio.run(self._read(read))

    async def _read(self, read):
        journal = holdfast.open_journal(self.journal, read_only=True)
        try:
            return await read(journal, await journal.find_run("trl"))
        finally:
            await journal.close()


def name(fields) -> str:
    body = fields["input_ids"].tobytes() + fields["old_log_probs"].tobytes()
    return f"{fields['group_id']}:{hashlib.sha256(body).hexdigest()[:16]}"


def check_once(training: Training) -> None:
    counted = Counter(row for _, row in training.history())
    recorded = sum(training.rows().values(), Counter())
    assert not counted - recorded, "a row was trained twice, or is none of the journal"


def check_history(training: Training) -> None:
    """Each row once, and each group of the ledger in the step that trained the last of it."""
    check_once(training)
    rows, history = training.rows(), training.history()
    counted = Counter(row for _, row in history)
    trained = [entry for entry in training.ledger() if entry.end == "trained"]
    assert trained
    for entry in trained:
        assert not rows[entry.ordinal] - counted, f"{entry} was not trained to its end"
        steps = [step for step, row in history if row.startswith(f"{entry.ordinal}:")]
        assert entry.step == max(steps)
    whole = {n for n, group in rows.items() if group and not group - counted}
    assert whole == {entry.ordinal for entry in trained}


def test_a_training_that_nobody_disturbs(tmp_path):
    training = Training(tmp_path)
    assert training.run() == 0
    check_history(training)
    assert Counter(step for step, _ in training.history()) == dict.fromkeys(range(1, STEPS + 1), 6)


def test_batches_by_tokens(tmp_path):
    training = Training(tmp_path)
    assert training.run("--token-budget", 600) == 0
    check_history(training)


@pytest.mark.parametrize("phase", CHOSEN)
def test_a_kill_at_any_phase_loses_and_repeats_nothing(tmp_path, phase):
    training = Training(tmp_path)
    assert training.run(crash=KILLS[phase]) == -signal.SIGKILL
    durable, before = training.turns(), len(training.requests())
    assert training.run() == 0
    turns = training.turns()
    assert {place: turns[place] for place in durable} == durable
    again = training.requests()[before:]
    assert not [name for name in again if any(name.endswith(turn) for turn in durable)], "again"
    check_history(training)


def test_two_kills_in_a_row(tmp_path):
    training = Training(tmp_path)
    assert training.run(crash="trl.trained:3") == -signal.SIGKILL
    assert training.split(), "a checkpoint of twelve rows holds part of a group of five"
    assert training.run(crash="stream.commit:1") == -signal.SIGKILL
    assert training.run() == 0
    check_history(training)


def test_stragglers_are_waited_for(tmp_path):
    """Sixteen trajectories are under way at once: more than these are settled before one group
    is."""
    training = Training(tmp_path)
    assert training.run("--samples", 4, "--steps", 2, "--stragglers", 21) == 0
    check_history(training)


def test_a_training_that_begins_does_not_get_the_rows_of_another(tmp_path, capfd):
    training = Training(tmp_path)
    assert training.run("--steps", 2) == 0
    before = training.ledger()
    history = training.history()
    training.out = tmp_path / "other"
    assert training.run("--steps", 2, "--learning-rate", 1e-4) == 1
    assert "a training goes on as it began; give another run" in capfd.readouterr().err
    training.out = tmp_path / "out"
    shutil.rmtree(training.out)
    assert training.run("--steps", 2) == 1
    assert "trained up to step 2, and the trainer begins anew" in capfd.readouterr().err
    assert training.ledger() == before
    assert history


def test_a_training_in_which_nothing_has_a_reward_ends(tmp_path, capfd):
    training = Training(tmp_path)
    assert training.run("--unrewarded") == 1
    assert "NothingRewarded: run 'trl': no trajectory of 4 groups" in capfd.readouterr().err
    assert len(training.ledger()) < 16, "no more than a few windows of four groups were drawn"


def test_what_trl_leaves_out_as_too_old_is_dismissed(tmp_path):
    training = Training(tmp_path)
    assert training.run("--max-staleness", 0) == 0
    check_once(training)
    counted = Counter(row for _, row in training.history())
    dismissed = [entry for entry in training.ledger() if entry.end == "dismissed"]
    assert dismissed, "rows that were sampled before the first step are too old after it"
    for entry in dismissed:
        assert entry.reason.startswith("left out by TRL: older than max_staleness")
        assert not [row for row in counted if row.startswith(f"{entry.ordinal}:")]


def test_a_resumed_training_ends_with_its_epoch(tmp_path):
    training = Training(tmp_path)
    words = ("--steps", -1, "--limit", 8)
    assert training.run(*words, crash="trl.trained:3") == -signal.SIGKILL
    assert training.run(*words) == 0
    check_history(training)
    groups = {row.partition(":")[0] for _, row in training.history()}
    assert 7 <= len(groups) <= 9, "TRL counts a group when its first micro-batch is formed"
