"""`holdfast train --async`: any part dies, in any order; nothing hangs, is lost or trained twice.

With a staleness of 0 and the embedded engine, one CPU ends with the bits of an undisturbed run, and
these are the bits of a training that does one thing after the other.
"""

import random
import shutil
import signal
import time
from importlib.util import find_spec

import pytest

from holdfast.records.exit_codes import Exit
from support.crash.agent_rollout import SILENT
from support.crash.pipeline import (
    AGENT,
    ENGINE,
    PARTS,
    ROLLOUTER,
    SCORED,
    SUPERVISOR,
    TRAINER,
    Pipeline,
    read_until,
)
from support.crash.pipeline_checks import assert_same, assert_whole
from support.crash.training import HELD, ROLLOUT, STEPS, Training

# Looked for, not imported: this process computes nothing.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Pipeline:
    pipeline = Pipeline(tmp_path_factory.mktemp("undisturbed"))
    code, out, err = pipeline.train()
    assert code == 0, err
    assert f"trained {STEPS} steps" in out
    assert pipeline.parts_left() == []
    return pipeline


@pytest.mark.timeout(900)
def test_a_kill_of_each_part_changes_nothing_and_leaves_no_process(undisturbed, tmp_path):
    pipeline = Pipeline(tmp_path)
    process = pipeline.start()
    read_until(process, "step 0 ")
    assert pipeline.kill(ROLLOUTER, process)
    read_until(process, "step 1 ")
    assert pipeline.kill(ENGINE, process)
    assert pipeline.kill(TRAINER, process)
    read_until(process, "step 2 ")
    assert pipeline.kill(SUPERVISOR, process)
    _, err = process.communicate()
    assert "the rollouter was killed by signal 9; starting it again" in err
    assert "the trainer was killed by signal 9; starting it again" in err
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train()
    assert code == 0, err
    assert_same(pipeline, undisturbed)


SAVED_LAST = ("--checkpoint-every", "3")


@pytest.mark.timeout(900)
def test_rollouts_go_on_with_the_weights_that_they_began_with_while_steps_are_trained_again(
    undisturbed, tmp_path
):
    """The trainer dies with steps that no checkpoint has; the engine and the rollouter live."""
    pipeline = Pipeline(tmp_path, rollout=HELD)
    process = pipeline.hold_last_step(*SAVED_LAST)
    assert pipeline.kill(TRAINER, process)
    read_until(process, "step 1 ")
    (pipeline.folder / "hold").unlink()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert_same(pipeline, undisturbed)


@pytest.mark.timeout(900)
def test_a_folder_that_is_lost_while_a_step_rolls_out_changes_nothing(undisturbed, tmp_path):
    """Everything dies: the engine begins with the model as it was before all training."""
    pipeline = Pipeline(tmp_path, rollout=HELD)
    process = pipeline.hold_last_step(*SAVED_LAST)
    assert pipeline.kill(SUPERVISOR, process)
    process.communicate()
    assert pipeline.parts_left() == []
    shutil.rmtree(pipeline.out)
    (pipeline.folder / "hold").unlink()
    code, out, err = pipeline.train(*SAVED_LAST)
    assert code == 0, err
    assert "was trained up to step 2" in out
    assert_same(pipeline, undisturbed)


@pytest.mark.timeout(900)
def test_an_engine_that_dies_each_time_ends_the_run_with_its_cause(undisturbed, tmp_path):
    pipeline = Pipeline(tmp_path)
    process = pipeline.start("--restarts", "2")
    read_until(process, "step 0 ")
    killed: set[int | None] = {None}
    while process.poll() is None:
        if (pid := pipeline.pid_of(ENGINE, process.pid)) not in killed:
            pipeline.kill(ENGINE, process)
            killed.add(pid)
        time.sleep(0.02)
    _, err = process.communicate()
    assert process.returncode == Exit.STOPPED, err
    (line,) = [line for line in err.splitlines() if "stopped: " in line]
    assert "engine was killed by signal 9" in line
    assert "(and so 2 times before)" in line
    assert err.count("to go on: ") == 1
    assert "Traceback" not in err
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train()
    assert code == 0, err
    assert_same(pipeline, undisturbed)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_staleness_of_0_is_a_training_that_does_one_thing_after_the_other(undisturbed, tmp_path):
    plain = Training(tmp_path)
    code, _, err = plain.train()
    assert code == 0, err
    assert plain.final() == undisturbed.final()
    assert plain.sampled() == undisturbed.sampled()
    assert plain.ledger() == undisturbed.ledger()


@pytest.mark.timeout(900)
def test_a_stop_with_care_ends_both_parts_and_changes_nothing(undisturbed, tmp_path):
    pipeline = Pipeline(tmp_path)
    process = pipeline.start()
    read_until(process, "step 1 ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "stopped: received SIGINT" in err
    assert err.count("to go on: ") == 1
    assert "Traceback" not in err
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train()
    assert code == 0, err
    assert_same(pipeline, undisturbed)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("rollout", [ROLLOUT, AGENT], ids=["rollout", "agent"])
def test_twenty_random_kills_in_one_run_change_nothing(tmp_path, staleness, rollout):
    """With a staleness of 0, the bits; otherwise the groups that are trained, step by step. With
    an agent, its gateway and scorers in processes of their own are among the victims."""
    chance = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    victims = PARTS if rollout == AGENT else PARTS[:4]
    deck = [victims[number % len(victims)] for number in range(20)]
    chance.shuffle(deck)
    options = ("--steps", "30", *(SCORED if rollout == AGENT else ()))
    plain = Pipeline(tmp_path / "undisturbed", staleness=staleness, rollout=rollout)
    assert plain.train(*options)[0] == 0
    pipeline = Pipeline(tmp_path / "killed", staleness=staleness, rollout=rollout)
    process, kills = pipeline.start(*options), []
    for part in deck:
        time.sleep(chance.uniform(0.1, 1.5))
        while process.poll() is None and not pipeline.kill(part, process):
            time.sleep(0.01)
        if process.poll() is None or part == SUPERVISOR:
            kills.append(part)
        if part == SUPERVISOR:
            process.communicate()
            process = pipeline.start(*options)
    _, err = process.communicate()
    print(len(kills), kills)
    assert process.returncode == 0, err
    assert_whole(pipeline)
    assert pipeline.ledger()[0] == plain.ledger()[0]
    if staleness == 0:
        assert pipeline.metrics() == plain.metrics()
        assert pipeline.sampled() == plain.sampled()
        assert pipeline.ledger() == plain.ledger()


@pytest.mark.timeout(900)
def test_a_stream_that_ends_gives_a_last_smaller_batch_and_both_parts_end(tmp_path):
    """Five tasks once, two a step: the rollouter is done first, and the trainer finishes."""
    pipeline = Pipeline(tmp_path, staleness=1)
    code, out, err = pipeline.train("--epochs", "1", "--steps", "9")
    assert code == 0, err
    assert "the stream of groups has ended after step 3" in out
    assert [step for _, _, step, _ in pipeline.ledger()[0]] == [1, 1, 2, 2, 3]
    lags = [line["lag_oldest"] for line in pipeline.metrics() if "lag_oldest" in line]
    assert max(lags) <= 1
    assert_whole(pipeline)


@pytest.mark.timeout(900)
def test_more_steps_after_the_last_one_are_those_of_a_longer_training(undisturbed, tmp_path):
    pipeline = Pipeline(tmp_path)
    code, _, err = pipeline.train("--steps", str(STEPS - 1))
    assert code == 0, err
    code, _, err = pipeline.train("--groups", "1")
    assert (code, "groups was 2, now 1" in err) == (Exit.CHANGED, True), err
    assert "starting the engine" not in err
    code, out, err = pipeline.train()
    assert code == 0, err
    assert f"trained {STEPS} steps" in out
    assert_same(pipeline, undisturbed)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory) -> Pipeline:
    """An agent behind the gateway, whose rollouter is killed; a scorer that never answers for one
    task; a validation with an n and limits of its own."""
    pipeline = Pipeline(tmp_path_factory.mktemp("troubled"), staleness=1, rollout=AGENT)
    scoring = ("--scorer-timeout", "1", "--scorer-tries", "1")
    validation = ("--eval-samples", "3", "--eval-max-tokens", "4", "--eval-deadline", "600")
    process = pipeline.start(*scoring, *validation)
    read_until(process, "step 1 ")
    assert pipeline.kill(ROLLOUTER, process)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return pipeline


@pytest.mark.timeout(900)
def test_an_agent_behind_the_gateway_is_trained_while_it_is_killed(troubled):
    groups, versions = troubled.ledger()
    trained = [step for _, end, step, _ in groups if end == "trained"]
    assert sorted(trained) == [step for step in range(1, STEPS + 1) for _ in range(2)]
    assert len(versions) == STEPS + 1
    assert troubled.parts_left() == []


@pytest.mark.timeout(900)
def test_a_scorer_that_never_answers_costs_its_group_and_nothing_else(troubled):
    ends = {task: (end, reason) for task, end, _, reason in troubled.ledger()[0]}
    silent = {task: end for task, end in ends.items() if task.split("@")[0] == SILENT}
    assert set(silent.values()) == {("dismissed", "too few valid members")}
    assert {end for task, end in ends.items() if task not in silent} == {("trained", "")}


@pytest.mark.timeout(900)
def test_a_validation_has_an_n_and_limits_of_its_own(troubled):
    turns = {key: turns for key, turns in troubled.turns().items() if ".held-out." in key}
    assert {key.rsplit("/", 1)[1] for key in turns} == {"0", "1", "2"}
    assert {len(taken) for taken in turns.values()} == {2}
    assert len([line for line in troubled.metrics() if "eval_reward" in line]) == 3


BAD = (
    (("--max-staleness", "-1"), "must be 0 or more"),
    (("--max-staleness", "3"), "give at most 2"),
    (("--max-staleness", "1", "--loss", "rloo"), "needs fresh samples"),
    (("--only", "trainer"), "needs --policy URL"),
)


@pytest.mark.timeout(600)
def test_bad_input_is_refused_in_one_line_and_touches_nothing(tmp_path):
    for arguments, line in BAD:
        pipeline = Pipeline(tmp_path)
        code, _, err = pipeline.train(*arguments)
        assert code == 2, err
        assert line in err
        assert not pipeline.out.exists()
        assert not pipeline.journal.exists()
    code, _, err = Training(tmp_path).train("--max-staleness", "1")
    assert (code, "belongs to --async" in err) == (2, True)
