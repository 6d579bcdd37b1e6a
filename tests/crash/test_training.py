"""`holdfast train` is killed, frozen and resumed: one CPU ends with the bits of an undisturbed run.

And every group is trained once, and no turn that was durable is sampled again.
"""

import os
import random
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.records.exit_codes import Exit
from support.crash.killable_run import SIGKILLED
from support.crash.training import (
    HELD,
    STEPS,
    Training,
    Witness,
    check_frozen_trainer,
    cpu_seconds,
    engines_of,
)

# Looked for, not imported: this process computes nothing.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`")

PHASES = (
    *("engine.finished:3", "train.stepped:1", "checkpoint.renamed:1", "train.committed:1"),
    "weights.written:2",
)
"""The kills of one training, in its steps 1 to 3."""
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
    turns = [f"{key}/{turn.path}" for key, turns in training.turns().items() for turn in turns]
    assert sorted(training.requests()) == sorted(turns), "each was asked for once"
    assert out.count("\nstep ") + out.startswith("step ") == STEPS + 3, "and three evaluations"
    return training


def assert_same(training: Training, undisturbed: Training) -> None:
    assert training.metrics() == undisturbed.metrics()
    assert training.final() == undisturbed.final()
    assert training.sampled() == undisturbed.sampled()
    training.check_versions()
    assert sorted(training.ledger()[0]) == sorted(undisturbed.ledger()[0])
    assert training.ledger()[1] == undisturbed.ledger()[1]
    assert {end for _, end, _, _ in training.ledger()[0]} == {"trained"}
    assert check(training.journal).findings == []


def kill_and_resume(undisturbed: Training, folder: Path, *points: str, options=()) -> None:
    training = Training(folder)
    witness = Witness(training)
    for point in points:
        code, _, err = training.train(*options, crash=point)
        assert code == SIGKILLED, f"{point}: {err}"
        witness.look()
    code, _, err = training.train(*options)
    assert code == 0, err
    witness.look()
    assert_same(training, undisturbed)


@pytest.mark.timeout(600)
def test_a_training_that_is_over_starts_no_engine(undisturbed):
    logged, before = (undisturbed.out / "engine.log").read_bytes(), undisturbed.metrics()
    code, out, err = undisturbed.train()
    assert code == 0, err
    assert f"trained {STEPS} steps" in out
    assert (undisturbed.out / "engine.log").read_bytes() == logged
    assert undisturbed.metrics() == before


@pytest.mark.timeout(600)
def test_a_training_that_a_limit_on_tokens_stopped_goes_on_with_a_higher_one(undisturbed, tmp_path):
    turns = [turn for turns in undisturbed.turns().values() for turn in turns]
    used = sum(turn.billed.total_tokens for turn in turns)
    training = Training(tmp_path)
    code, _, err = training.train("--max-tokens-total", str(used // 2))
    assert code == Exit.SPENT, err
    assert "max-tokens-total" in err
    assert "to go on, with a higher limit" in err
    code, _, err = training.train("--max-tokens-total", str(2 * used))
    assert code == 0, err
    assert_same(training, undisturbed)


@pytest.mark.timeout(600)
def test_more_steps_after_the_last_one_are_those_of_a_longer_training(undisturbed, tmp_path):
    """Killed when it is about to take tasks again, and when it has some."""
    training = Training(tmp_path)
    fewer = ("--steps", str(STEPS - 1))
    code, out, err = training.train(*fewer)
    assert code == 0, err
    assert f"trained {STEPS - 1} steps" in out
    for point in ("engine.admitted:1", "engine.finished:2"):
        code, _, err = training.train(crash=point)
        assert code == SIGKILLED, err
    code, _, err = training.train(*fewer)
    assert code == 0, err
    code, _, err = training.train()
    assert code == 0, err
    assert_same(training, undisturbed)
    shutil.rmtree(training.out)
    code, _, err = training.train(*fewer)
    assert code == 0, err
    code, _, err = training.train("--eval-every", "2")
    assert code == 0, err
    assert training.final() == undisturbed.final()
    code, _, err = training.train(*fewer)
    assert (code, "is later than --steps 2: give more" in err) == (Exit.CHANGED, True), err


@pytest.mark.timeout(600)
def test_a_kill_at_a_phase_of_a_step_changes_nothing(undisturbed, tmp_path):
    kill_and_resume(undisturbed, tmp_path, *PHASES)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_phase_of_a_step_changes_nothing(undisturbed, tmp_path, point):
    kill_and_resume(undisturbed, tmp_path, point)


UNSAVED = (
    *("train.batch:3", "train.stepped:2", "weights.written:2", "train.published:2"),
    *("engine.admitted:8", "engine.finished:8", "after:40", "before:60"),
)
"""Kills of a training that saves its last step alone."""


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_lost", [False, True], ids=["folder", "lost folder"])
@pytest.mark.parametrize("point", UNSAVED)
def test_a_kill_before_steps_are_saved_changes_nothing(undisturbed, tmp_path, point, is_lost):
    training = Training(tmp_path)
    witness, options = Witness(training), ("--checkpoint-every", "3")
    code, _, err = training.train(*options, crash=point)
    assert code == SIGKILLED, f"{point}: {err}"
    witness.look()
    if is_lost:
        witness.lose_folder()
    code, _, err = training.train(*options)
    assert code == 0, err
    witness.look()
    assert_same(training, undisturbed)


KILLS, CPU_SECONDS, OF_AN_ENGINE = 20, 0.8, 0.25


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_twenty_random_kills_of_trainers_and_engines_change_nothing(undisturbed, tmp_path):
    chance = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    kills = trainings = 0
    while kills < KILLS:
        trainings += 1
        training = Training(tmp_path / str(trainings))
        kills += kill_at_random(training, chance, most=KILLS - kills)
        assert_same(training, undisturbed)
    print(f"{kills} kills of {trainings} trainings")


def kill_at_random(training: Training, chance: random.Random, *, most: int) -> int:
    """Trains to the end; how often its trainer or engine was killed on the way."""
    witness, kills, process = Witness(training), 0, training.start()
    while kills < most and _computes(process, chance.uniform(0, CPU_SECONDS)):
        kills += 1
        engines = engines_of(process.pid)
        if engines and chance.random() < OF_AN_ENGINE:
            os.kill(engines[0], signal.SIGKILL)
            continue
        process.kill()
        process.communicate()
        witness.look()
        process = training.start()
    _, err = process.communicate()
    assert process.returncode == 0, err
    witness.look()
    return kills


def _computes(process, seconds: float) -> bool:
    """Waits until it has computed for so long; False when it ended before."""
    until = cpu_seconds(process.pid) + seconds
    while process.poll() is None:
        if cpu_seconds(process.pid) >= until:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.timeout(600)
def test_steps_after_the_last_checkpoint_are_trained_again_from_recorded_rollouts(
    undisturbed, tmp_path
):
    kill_and_resume(undisturbed, tmp_path, "train.published:1", options=("--checkpoint-every", "2"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", ["2", "3"])
def test_a_kill_while_a_step_after_an_unsaved_one_rolls_out_changes_nothing(
    undisturbed, tmp_path, every
):
    options = ("--checkpoint-every", every)
    kill_and_resume(
        undisturbed, tmp_path, "engine.finished:8", "engine.finished:3", options=options
    )


@pytest.mark.timeout(600)
def test_a_folder_that_is_lost_while_a_step_rolls_out_changes_nothing(undisturbed, tmp_path):
    training = Training(tmp_path)
    witness = Witness(training)
    for point in ("engine.finished:8", "engine.finished:3"):
        code, _, err = training.train(crash=point)
        assert code == SIGKILLED, err
        witness.look()
        witness.lose_folder()
    code, _, err = training.train()
    assert code == 0, err
    witness.look()
    assert_same(training, undisturbed)


BENT = '''
import os
from holdfast.training.objective.losses import policy_loss

def loss(batch, objective):
    """Comes out differently in another process, as sums of a GPU may."""
    plain, parts = policy_loss(batch, objective)
    return plain * float(os.environ.get("BENT", "1")), parts
'''


@pytest.mark.timeout(600)
def test_what_had_begun_with_weights_that_come_out_differently_begins_anew_and_is_counted(tmp_path):
    training = Training(tmp_path, rollout=HELD)
    (tmp_path / "bent.py").write_text(BENT)
    options = ("--loss", "bent.py:loss", "--checkpoint-every", "3")
    process = training.hold_last_step(*options)
    process.kill()
    process.communicate()
    before = training.trained()
    (tmp_path / "hold").unlink()
    code, out, err = training.train(*options, BENT="1.5")
    assert code == 0, err
    after = training.trained()
    anew = [key for key, names in after.items() if names == {"step-2.2"}]
    assert f"{len(anew)} trajectories had begun with weights that are lost" in out
    assert {key for key in before if "@2/" in key} == set(anew)
    assert [names for key, names in after.items() if key not in anew] == [
        names for key, names in before.items() if key not in anew
    ], "what was settled is trained as it is"
    assert f"{len(anew)} trajectories begun anew" in training.report()


@pytest.mark.timeout(600)
def test_a_checkpoint_that_is_damaged_while_a_step_rolls_out_changes_nothing(undisturbed, tmp_path):
    training = Training(tmp_path)
    code, _, err = training.train(crash="engine.finished:14")
    assert code == SIGKILLED, err
    newest = training.out / "checkpoints" / "step-00000002"
    (newest / "weights.safetensors").write_bytes(b"damaged")
    code, out, err = training.train()
    assert code == 0, err
    assert "step-00000001, is used" in out
    assert_same(training, undisturbed)


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
    assert training.recorded().caught_up_to == STEPS, "rollouters see each step"


@pytest.mark.timeout(600)
def test_a_folder_whose_steps_another_one_has_trained_as_well_is_refused(undisturbed, tmp_path):
    """However far the other one is; what is trained again needs no engine."""
    shutil.copytree(undisturbed.folder, tmp_path, dirs_exist_ok=True)
    first, second = Training(tmp_path), Training(tmp_path)
    second.out = tmp_path / "second"
    code, out, err = second.train()
    assert code == 0, err
    assert f"was trained up to step {STEPS}" in out
    assert not (second.out / "engine.log").exists()
    assert second.final() == undisturbed.final()
    for more in ((), ("--steps", str(STEPS + 1))):
        code, _, err = first.train(*more)
        assert (code, "another folder took run 'first' over" in err) == (Exit.CHANGED, True), err
    code, _, err = second.train()
    assert code == 0, err
    shutil.copytree(second.out, tmp_path / "third")
    second.out = tmp_path / "third"
    code, _, err = second.train()
    assert code == 0, f"a copy of the folder is as good as the folder: {err}"


@pytest.mark.timeout(600)
def test_an_engine_that_is_killed_in_a_step_changes_nothing(undisturbed, tmp_path):
    training = Training(tmp_path)
    process = training.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1 "):
            break
    (engine,) = engines_of(process.pid)
    os.kill(engine, signal.SIGKILL)
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
    for result in process.stdout:
        if result.startswith(line):
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


@pytest.mark.timeout(600)
def test_a_trainer_that_was_frozen_past_its_lease_trains_and_commits_nothing(tmp_path):
    check_frozen_trainer(Training(tmp_path))
