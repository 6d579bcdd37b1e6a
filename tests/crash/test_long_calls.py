"""A call that takes longer than the driver lives is begun again each time, and blamed for nothing:
drivers are killed for reasons of their own."""

import subprocess
import time
from pathlib import Path

from holdfast.journal.damage.check import check
from holdfast.rollout.replay.session import SUSPECT_AFTER_CRASHES
from holdfast.testing import FakeEngine
from support.crash.command import export_samples, finished, holdfast, run_words, write_tasks

TASKS = ["build", "move", "world"]
SAMPLES = 2
KILLS = SUSPECT_AFTER_CRASHES + 3


def begun(place: Path) -> int:
    path = place / "begun"
    return len(path.read_text().splitlines()) if path.exists() else 0


def until_begun(place: Path, calls: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while begun(place) < calls:
        assert process.poll() is None, "the driver ended by itself"
        assert time.monotonic() < deadline, (place / "begun").read_text()
        time.sleep(0.01)


def start(place: Path, engine: FakeEngine, tasks: Path):
    arguments = run_words(place, engine, tasks, "--samples", SAMPLES, rollout="long_calls.py")
    return holdfast(*arguments, env={"HOLDFAST_EFFECTS": str(place)})


def test_kills_in_the_same_long_call_change_nothing(tmp_path):
    tasks = write_tasks(tmp_path / "tasks.jsonl", TASKS)
    with FakeEngine(mean_length=16) as engine:
        calm = tmp_path / "calm"
        calm.mkdir()
        (calm / "go").touch()
        code, _, err = finished(start(calm, engine, tasks))
        assert code == 0, err
        assert begun(calm) == len(TASKS) * SAMPLES
        for kill in range(1, KILLS + 1):
            process = start(tmp_path, engine, tasks)
            try:
                until_begun(tmp_path, kill * len(TASKS) * SAMPLES, process)
            finally:
                process.kill()
                finished(process)
        (tmp_path / "go").touch()
        code, out, err = finished(start(tmp_path, engine, tasks))
    assert code == 0, err
    assert "0 attempts retried" in out or "retried" not in out, out
    assert export_samples(tmp_path) == export_samples(calm)
    assert check(tmp_path / "journal.db").findings == []
