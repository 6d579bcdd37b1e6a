"""`holdfast train` is killed, frozen and resumed: one CPU ends with the bits of an undisturbed run.

And every group is trained once, and no turn that was durable is sampled again.
"""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from support.crash.lab import SIGKILLED
from support.crash.training import STEPS, Training, children, one_line

pytest.importorskip("peft", reason="the extra `train`")

QUICK = ("checkpoint.renamed:3", "weights.written:3")
POINTS = (
    *("train.batch:1", "train.batch:3", "train.stepped:2", "checkpoint.file:6"),
    *("checkpoint.written:1", "checkpoint.renamed:1", "train.committed:1", "train.committed:3"),
    *("weights.written:1", "train.published:2", "train.published:3"),
    *("engine.admitted:6", "engine.finished:7", "after:40", "before:60"),
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Training:
    training = Training(tmp_path_factory.mktemp("undisturbed"))
    code, out, err = training.train()
    assert code == 0, err
    assert out.count("\nstep ") + out.startswith("step ") == STEPS + 3, "and three evaluations"
    return training


def assert_same(training: Training, undisturbed: Training) -> None:
    assert training.metrics() == undisturbed.metrics()
    assert training.final() == undisturbed.final()
    assert training.sampled() == undisturbed.sampled()
    assert sorted(training.ledger()[0]) == sorted(undisturbed.ledger()[0])
    assert training.ledger()[1] == undisturbed.ledger()[1]
    assert {end for _, end, _, _ in training.ledger()[0]} == {"trained"}
    assert check(training.journal).findings == []


def kill_and_resume(undisturbed: Training, folder: Path, point: str, *more: str) -> None:
    training = Training(folder)
    code, _, err = training.train(*more, crash=point)
    assert code == SIGKILLED, err
    durable = training.turns()
    code, _, err = training.train(*more)
    assert code == 0, err
    after = training.turns()
    for key, turns in durable.items():
        # With the seconds that each took: another sampling would have taken others.
        assert after[key][: len(turns)] == turns
    assert_same(training, undisturbed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", QUICK)
def test_a_kill_at_a_phase_of_a_step_changes_nothing(undisturbed, tmp_path, point):
    kill_and_resume(undisturbed, tmp_path, point)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_phase_of_a_step_changes_nothing(undisturbed, tmp_path, point):
    kill_and_resume(undisturbed, tmp_path, point)


@pytest.mark.timeout(600)
def test_steps_after_the_last_checkpoint_are_trained_again_from_recorded_rollouts(
    undisturbed, tmp_path
):
    kill_and_resume(undisturbed, tmp_path, "train.published:1", "--checkpoint-every", "2")


@pytest.mark.timeout(600)
def test_a_lost_folder_is_made_again_from_the_recorded_rollouts(undisturbed, tmp_path):
    training = Training(tmp_path)
    for file in undisturbed.folder.glob("journal.db*"):
        shutil.copy(file, tmp_path)
    turns = training.turns()
    code, out, err = training.train()
    assert code == 0, err
    assert f"was trained up to step {STEPS}" in out
    assert training.turns() == turns
    assert_same(training, undisturbed)


@pytest.mark.timeout(600)
def test_an_engine_that_is_killed_in_a_step_changes_nothing(undisturbed, tmp_path):
    training = Training(tmp_path)
    process = training.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1 "):
            break
    for pid in children(process.pid):
        if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert_same(training, undisturbed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("step 1 ", id="in a step"),
        pytest.param("step 2 ", id="in an evaluation", marks=pytest.mark.exhaustive),
    ],
)
def test_a_stop_with_care_says_how_to_go_on_and_changes_nothing(undisturbed, tmp_path, line):
    training = Training(tmp_path)
    process = training.start()
    assert process.stdout is not None
    for found in process.stdout:
        if found.startswith(line):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "stopped: received SIGINT" in err
    assert "to go on: " in err
    assert "Traceback" not in err
    code, _, err = training.train()
    assert code == 0, err
    assert_same(training, undisturbed)


# --- two trainers

FREEZE = '''
import os
import signal
from holdfast.training.objective.losses import policy_loss

calls = 0

def loss(batch, objective):
    """Freezes the process in its second step, as a laptop that is closed does."""
    global calls
    calls += 1
    if "FREEZE" in os.environ and calls == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return policy_loss(batch, objective)
'''


@pytest.mark.timeout(600)
def test_a_trainer_that_was_frozen_past_its_lease_trains_and_commits_nothing(tmp_path):
    training = Training(tmp_path)
    (tmp_path / "own.py").write_text(FREEZE)
    options = ("--loss", "own.py:loss", "--lease", "3")
    frozen = training.start(*options, FREEZE="1")
    try:
        _wait_until_stopped(frozen.pid)
        code, _, err = training.train(*options)
        assert (code != 0, "another process trains in" in one_line(err)) == (True, True)
        other = _take_over(training, options)
        before = other.ledger()
        assert {end for _, end, _, _ in before[0]} == {"trained"}
    finally:
        frozen.send_signal(signal.SIGCONT)
    _, err = frozen.communicate()
    assert frozen.returncode not in (0, SIGKILLED)
    assert "taken" in err or "lease" in err.lower(), err
    assert "Traceback" not in err
    assert other.ledger() == before
    assert len(list((training.out / "checkpoints").glob("step-*"))) <= 1


def _take_over(training: Training, options: tuple[str, ...]) -> Training:
    """Another process, with a copy of the folder, as soon as the leases have run out."""
    other = Training(training.folder)
    other.out = training.folder / "copy"
    shutil.copytree(training.out, other.out)
    deadline = time.monotonic() + 120
    while True:
        code, _, err = other.train(*options)
        if code == 0:
            return other
        assert time.monotonic() < deadline, err
        assert "holds it for" in one_line(err) or "works on" in one_line(err), err


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.05)
