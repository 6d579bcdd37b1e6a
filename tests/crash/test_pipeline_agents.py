"""`holdfast train --async` with a black-box agent behind the gateway, and scorers in processes of
their own: it ends in every order, and whatever of it is killed changes nothing."""

import os
import signal
import time
from importlib.util import find_spec

import pytest

from holdfast.records.exit_codes import Exit
from support.crash.pipeline import (
    AGENT,
    ENGINE,
    GATEWAY,
    SCORED,
    SCORER,
    SUPERVISOR,
    TRAINER,
    Pipeline,
    read_until,
)
from support.crash.pipeline_checks import assert_same, assert_whole

pytestmark = [
    pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Pipeline:
    pipeline = Pipeline(tmp_path_factory.mktemp("undisturbed"), rollout=AGENT)
    code, _, err = pipeline.train(*SCORED)
    assert code == 0, err
    assert_whole(pipeline)
    return pipeline


def until_there(pipeline: Pipeline, part: str, process) -> int:
    while (pid := pipeline.pid_of(part, process.pid)) is None:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return pid


def test_a_kill_of_the_gateway_of_a_scorer_and_of_each_part_changes_nothing(undisturbed, tmp_path):
    pipeline = Pipeline(tmp_path, rollout=AGENT)
    process = pipeline.start(*SCORED)
    read_until(process, "step 0 ")
    kill_gateway_in_use(pipeline, process)
    read_until(process, "step 1 ")
    for part in (SCORER, ENGINE, TRAINER):
        print(part, pipeline.kill(part, process))
    read_until(process, "step 2 ")
    pipeline.kill(SUPERVISOR, process)
    process.communicate()
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train(*SCORED)
    assert code == 0, err
    assert_same(pipeline, undisturbed)


def kill_gateway_in_use(pipeline: Pipeline, process) -> None:
    """With agents behind it that get no reply: the engine stands still."""
    is_killed = False
    while not is_killed:
        until_there(pipeline, GATEWAY, process)
        engine = until_there(pipeline, ENGINE, process)
        os.kill(engine, signal.SIGSTOP)
        try:
            is_killed = pipeline.kill(GATEWAY, process)
        finally:
            os.kill(engine, signal.SIGCONT)


def test_the_rollouter_ends_first_and_the_trainer_finishes(tmp_path):
    """Five tasks once, two a step."""
    pipeline = Pipeline(tmp_path, staleness=1, rollout=AGENT)
    code, out, err = pipeline.train(*SCORED, "--epochs", "1", "--steps", "9")
    assert code == 0, err
    assert "the stream of groups has ended after step 3" in out
    assert [step for _, _, step, _ in pipeline.ledger()[0]] == [1, 1, 2, 2, 3]
    assert_whole(pipeline)


LOSS = """
import os
from holdfast.training.objective.losses import policy_loss

def loss(batch, objective):
    if "BROKEN" in os.environ:
        raise ValueError("no such loss")
    return policy_loss(batch, objective)
"""


def test_the_trainer_ends_first_and_no_agent_is_left(tmp_path):
    """By an error that another start would meet again. The same command goes on without it."""
    pipeline = Pipeline(tmp_path, staleness=1, rollout=AGENT)
    (tmp_path / "own.py").write_text(LOSS)
    arguments = (*SCORED, "--loss", "own.py:loss")
    code, _, err = pipeline.train(*arguments, BROKEN="1")
    assert code == Exit.STOPPED, err
    assert "no such loss" in err
    assert "own.py" in err, "the traceback of the loss begins in the user's file"
    assert "holdfast/training" not in err
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train(*arguments)
    assert code == 0, err
    assert_whole(pipeline)


@pytest.mark.exhaustive
def test_both_end_at_once_and_no_agent_is_left(undisturbed, tmp_path):
    """By a signal, while agents wait for their replies."""
    pipeline = Pipeline(tmp_path, rollout=AGENT)
    process = pipeline.start(*SCORED)
    read_until(process, "step 1 ")
    until_there(pipeline, GATEWAY, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == Exit.TERMINATED, err
    assert pipeline.parts_left() == []
    code, _, err = pipeline.train(*SCORED)
    assert code == 0, err
    assert_same(pipeline, undisturbed)
