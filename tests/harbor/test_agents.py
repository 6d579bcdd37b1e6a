"""Agents in the containers of Harbor tasks, on the stand-in of a container engine."""

import json
import os
from collections.abc import Iterator

import pytest
from msgspec import structs

from holdfast.harbor.agents import agent_named
from holdfast.harbor.environment import parse_reward, resolved
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.task import tasks_digest
from holdfast.tasks.read import read_tasks
from holdfast.testing import FakeContainers
from support.engine.local_run import LocalRun
from support.environments.workspaces import needs_bwrap
from support.harbor import HARBOR_TASKS, PLAIN, harbor_task_folder
from support.rollout.stage import Oracle

pytestmark = needs_bwrap
CALL = '<tool_call>{{"name": "bash", "arguments": {}}}</tool_call>'


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeContainers]:
    with FakeContainers() as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.address)
        yield fake


def performed(folder, agent: str, policy=None, **settings) -> LocalRun:
    run = LocalRun(policy=policy)
    run.tasks = read_tasks(f"harbor:{folder}")
    run.spec = structs.replace(run.spec, tasks=tasks_digest(run.tasks))
    run.run(agent_named(agent), max_retry=0, **settings)
    return run


def only_history(run: LocalRun):
    (history,) = run.histories().values()
    return history


def test_the_oracle_runs_the_solution_and_the_verifier_gives_its_reward(engine) -> None:
    history = only_history(performed(HARBOR_TASKS / "add-line", "oracle"))
    assert (history.status.name, history.reward) == ("COMPLETED", 1.0)
    assert (engine.containers, engine.snapshots) == ([], [])


def test_a_verifier_that_writes_no_reward_is_a_failure_of_the_environment(engine) -> None:
    history = only_history(performed(HARBOR_TASKS / "no-reward", "oracle"))
    assert (history.status.name, history.reward) == ("FAILED", None)
    failure = history.failures[-1]
    assert failure.cause.name == "ENVIRONMENT"
    assert "the verifier wrote no reward" in failure.message
    assert "the tests cannot run here" in failure.message
    assert (engine.containers, engine.snapshots) == ([], [])


def test_the_terminal_agent_works_with_the_tools_and_is_verified(engine) -> None:
    def working(request):
        prompt = bytes(token for token in request.prompt if token < 256)
        if prompt.count(b"assistant\n") > 1:
            return "it is done"
        return CALL.format(json.dumps({"command": "mkdir -p /work; echo done >> $PLACE/list"}))

    run = performed(HARBOR_TASKS / "add-line", "terminal", Oracle(working))
    assert only_history(run).reward == 1.0


def test_an_agent_that_did_nothing_has_the_verifiers_reward(engine) -> None:
    run = performed(HARBOR_TASKS / "add-line", "terminal", Oracle(lambda request: "no"))
    assert only_history(run).reward == 0.0


def test_an_agent_cannot_bring_its_own_reward_or_tests(engine, tmp_path) -> None:
    forged = "mkdir -p /tests; echo 1 > /tests/forged; echo 1 > /logs/verifier/reward.json"

    def forging(request):
        prompt = bytes(token for token in request.prompt if token < 256)
        if prompt.count(b"assistant\n") > 1:
            return "it is done"
        return CALL.format(json.dumps({"command": forged}))

    folder = harbor_task_folder(
        tmp_path, test="[ -e /tests/forged ] || echo 0.25 > /logs/verifier/reward.txt"
    )
    assert only_history(performed(folder, "terminal", Oracle(forging))).reward == 0.25


def test_a_verifier_that_takes_too_long_is_a_failure_of_the_environment(engine, tmp_path) -> None:
    folder = harbor_task_folder(
        tmp_path,
        f"{PLAIN}[verifier]\ntimeout_sec = 0.5",
        "echo begun; sleep 100",
    )
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("#!/bin/sh\n")
    history = only_history(performed(folder, "oracle"))
    assert history.status.name == "FAILED"
    assert "the verifier was not done within 0.5 s" in history.failures[0].message


def test_a_task_without_a_solution_has_no_oracle(engine, tmp_path) -> None:
    run = LocalRun()
    run.tasks = read_tasks(f"harbor:{harbor_task_folder(tmp_path)}")
    run.spec = structs.replace(run.spec, tasks=tasks_digest(run.tasks))
    ending = run.run(agent_named("oracle"))
    assert "has no solution/solve.sh" in str(ending.fatal or only_history(run).failures)


@pytest.mark.parametrize(
    ("text", "path", "reward"),
    [
        ("0.5\n", "reward.txt", 0.5),
        ("1", "reward.json", 1.0),
        ('{"reward": 0.25, "speed": 3}', "reward.json", 0.25),
        ('{"accuracy": 0.75}', "reward.json", 0.75),
    ],
)
def test_a_reward_is_a_number_in_either_file(text, path, reward) -> None:
    assert parse_reward(text, path) == reward


@pytest.mark.parametrize("text", ["", "good", "nan", "inf"])
def test_a_text_that_is_no_number_is_no_reward(text) -> None:
    with pytest.raises(EnvironmentBroken, match="wrote no number"):
        parse_reward(text, "reward.txt")


@pytest.mark.parametrize("text", ["", "[]", "true", '{"a": 1, "b": 2}', '{"reward": "1"}', "NaN"])
def test_json_without_one_number_is_no_reward(text) -> None:
    with pytest.raises(EnvironmentBroken, match="wrote no number"):
        parse_reward(text, "reward.json")


def test_variables_of_this_machine_are_filled_in(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_HARBOR_KEY", "secret")
    given = {"A": "${HOLDFAST_HARBOR_KEY}", "B": "${HOLDFAST_NOTHING:-b}", "C": "${x} y"}
    assert resolved(given) == {"A": "secret", "B": "b", "C": "${x} y"}
    assert "HOLDFAST_NOTHING" not in os.environ
    with pytest.raises(UsageError, match="HOLDFAST_NOTHING"):
        resolved({"A": "${HOLDFAST_NOTHING}"})
