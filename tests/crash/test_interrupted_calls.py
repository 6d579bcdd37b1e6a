"""A kill in the middle of a call that may not be made twice is never an outcome by accident."""

import json
import signal
from pathlib import Path

import pytest

from holdfast.rollout.tool_step import INTERRUPTED
from holdfast.testing import FakeEngine
from support.crash.command import export_samples, finished, holdfast, run_words, write_tasks


class Killed:
    """A run of one task, killed in the call of its tool, and gone on with."""

    def __init__(self, place: Path, engine: FakeEngine, *options: object):
        self.place = place
        self._env = {"HOLDFAST_EFFECTS": str(place)}
        tasks = write_tasks(place / "tasks.jsonl", ["a"])
        self._words = run_words(place, engine, tasks, *options, rollout="interrupted_call.py")
        code, _, err = finished(holdfast(*self._words, env=self._env))
        assert code == -signal.SIGKILL, err

    def go_on(self, *options: object) -> int:
        code, _, err = finished(holdfast(*self._words, *options, env=self._env))
        assert code is not None, err
        return code

    @property
    def paid(self) -> list[str]:
        return (self.place / "paid").read_text().splitlines()

    @property
    def samples(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in export_samples(self.place).splitlines()]

    def shown(self) -> str:
        journal = self.place / "journal.db"
        _, out, _ = finished(holdfast("show", "crash", "a/0", "--journal", journal))
        return out


@pytest.fixture
def engine():
    with FakeEngine(mean_length=16) as engine:
        yield engine


def test_the_sample_is_made_anew_where_its_group_has_a_refill(tmp_path, engine) -> None:
    killed = Killed(tmp_path, engine)
    assert killed.go_on() == 0
    (sample,) = killed.samples
    assert (sample["reward"], sample["interrupted"]) == (1.0, False)
    assert len(set(killed.paid)) == len(killed.paid) == 2, "another life has other keys"


def test_without_a_refill_the_model_is_told_and_there_is_no_sample(tmp_path, engine) -> None:
    killed = Killed(tmp_path, engine, "--group-refill", 0)
    assert killed.go_on() == 7
    assert len(killed.paid) == 1
    assert INTERRUPTED in killed.shown()
    assert "InterruptedCall" in killed.shown()
    assert killed.go_on("--retry-failed") == 0, "by the user's wish it is called again"
    assert [sample["reward"] for sample in killed.samples] == [1.0]
    assert (len(killed.paid), len(set(killed.paid))) == (2, 1)


def test_a_run_may_keep_what_its_model_made_of_it(tmp_path, engine) -> None:
    killed = Killed(tmp_path, engine, "--keep-interrupted")
    assert killed.go_on() == 0
    (sample,) = killed.samples
    assert (sample["reward"], sample["interrupted"]) == (0.0, True)
    assert len(killed.paid) == 1
