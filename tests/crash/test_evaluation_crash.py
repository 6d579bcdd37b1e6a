"""Evaluations that are killed: the same command goes on, and nothing durable is done again."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.journal import open_journal
from holdfast.journal.damage.check import check
from holdfast.records.history import History
from holdfast.records.step import Generated, ValueRecorded
from holdfast.records.trajectory import TrajectoryKey
from holdfast.testing import FakeEngine
from support.crash.killable_run import settle
from support.exhaustive import points
from support.fork_server import Popen

TURNS = 3
ROWS, KILLS = points(80, 200), points(2, 4)
BETWEEN_KILLS = (points(20, 40), points(60, 160))
"""Requests, at least and less than."""

THREE_TURNS = f"""
from holdfast import Rollout
from holdfast.evaluation import evaluation_test

async def talk(t: Rollout):
    t.add(*t.task.messages)
    for turn in range({TURNS}):
        await t.generate()

@evaluation_test(
    dataset=[{{"id": f"row{{n}}", "prompt": f"Talk about {{n}}."}} for n in range({ROWS})],
    rollout_processor=talk,
    seed=5,
    max_concurrent_rollouts=16,
)
def test_talk(row):
    said = [one.content for one in row.get_assistant_messages()]
    assert len(said) == {TURNS}
    return sum(map(len, said)) / 100
"""


def command(place: Path, engine: FakeEngine, *extra: str, **env: str) -> "subprocess.Popen[str]":
    arguments = ["-p", "holdfast.evaluation.plugin", "-p", "no:cacheprovider", "-q"]
    arguments += ["--holdfast-policy", engine.url, "--holdfast-summary", "summary.json"]
    return Popen(
        [sys.executable, "-m", "pytest", *arguments, *extra],
        cwd=place,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def completed(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=250)
    assert process.returncode == 0, out
    return out


def only_run(place: Path) -> dict[str, object]:
    (outcome,) = json.loads((place / "summary.json").read_text())["evaluations"]
    (run,) = outcome["runs"]
    return dict(run)


def durable_turns(place: Path) -> set[str]:
    """The ids of all generations in the journal, as the engine saw them asked for."""
    return {
        f"{key}/{step.path}"
        for key, history in histories(place)
        for step in history.steps.values()
        if isinstance(step, Generated)
    }


def durable_scores(place: Path) -> set[str]:
    """The tasks of which every trajectory has its score."""
    results = histories(place)
    unscored = {key.task for key, history in results if history.scored is None}
    return {key.task for key, _ in results} - unscored


def histories(place: Path) -> list[tuple[TrajectoryKey, History]]:
    """Of all runs."""

    async def read() -> list[tuple[TrajectoryKey, History]]:
        journal = open_journal(str(place / ".holdfast" / "evaluations.db"))
        result: list[tuple[TrajectoryKey, History]] = []
        try:
            for listed in await journal.runs():
                run = await journal.find_run(listed.name)
                assert run is not None
                result += [(row.key, History(log)) async for row, log in journal.histories(run)]
        finally:
            await journal.close()
        return result

    return asyncio.run(read())


@pytest.fixture
def engine():
    with FakeEngine(mean_length=12, delay=0.01) as engine:
        yield engine


def test_a_run_that_grows_is_killed_and_ends_like_one_that_had_all_rows(tmp_path, engine):
    place, quiet = tmp_path / "grown", tmp_path / "whole"
    for folder in (place, quiet):
        folder.mkdir()
        (folder / "test_eval.py").write_text(THREE_TURNS)
    completed(command(quiet, engine, "--holdfast-max-rows", "60"))
    expected = only_run(quiet)
    engine.reset()
    completed(command(place, engine, "--holdfast-max-rows", "20"))
    assert engine.stats().requests == 20 * TURNS
    process = command(place, engine, "--holdfast-max-rows", "60")
    while process.poll() is None and engine.stats().requests < 30 * TURNS:
        time.sleep(0.005)
    assert process.poll() is None, "it was killed on its way"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = durable_turns(place)
    settle(engine)
    count = len(engine.requests())
    completed(command(place, engine, "--holdfast-max-rows", "60"))
    assert not before & {name for name, _ in engine.requests()[count:]}
    fields = only_run(place)
    assert fields["run"] == "test_eval.test_talk-2", "the rows of both starts are one run"
    keys = ("rows", "scored", "failed", "agg_score", "standard_error")
    assert {key: fields[key] for key in keys} == {key: expected[key] for key in keys}


def test_many_rows_of_three_turns_are_killed_and_no_turn_is_done_twice(tmp_path, engine):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    place, quiet = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (place, quiet):
        folder.mkdir()
        (folder / "test_eval.py").write_text(THREE_TURNS)
    completed(command(quiet, engine))
    expected = only_run(quiet)
    assert engine.stats().requests == ROWS * TURNS
    engine.reset()
    kills = 0
    while kills < KILLS:
        before = durable_turns(place) if kills else set()
        settle(engine)
        count = len(engine.requests())
        process = command(place, engine)
        goal = count + chance.randrange(*BETWEEN_KILLS)
        while process.poll() is None and engine.stats().requests < goal:
            time.sleep(0.005)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        again = [name for name, _ in engine.requests()[count:]]
        assert not before & set(again), "a durable turn was generated again"
    assert kills >= 2, "it was over before it was disturbed"
    settle(engine)
    before, count = durable_turns(place), len(engine.requests())
    out = completed(command(place, engine))
    assert "test_eval.test_talk goes on:" in out
    again = [name for name, _ in engine.requests()[count:]]
    assert not before & set(again), "a durable turn was generated again"
    assert len(before) + len(again) == ROWS * TURNS
    fields = only_run(place)
    assert fields["agg_score"] == expected["agg_score"]
    assert (fields["scored"], fields["failed"]) == (ROWS, 0)
    assert not check(place / ".holdfast" / "evaluations.db").findings


SUICIDAL = """
import os, signal
from pathlib import Path
from holdfast.evaluation import evaluation_test

ROWS = [{{"id": f"row{{n}}", "prompt": f"Say {{n}}."}} for n in range(12)]
COUNT = Path("count")

def die_at(number):
    seen = len(COUNT.read_text()) + 1 if COUNT.exists() else 1
    COUNT.write_text("x" * seen)
    if seen == number:
        os.kill(os.getpid(), signal.SIGKILL)

@evaluation_test(dataset=ROWS, max_concurrent_evaluations=1, {arguments})
def test_it({rows}):
    die_at({number})
    return {score}
"""


@pytest.mark.parametrize(
    ("arguments", "rows", "number", "score", "requests"),
    [
        ("", "row", 7, "1.0", 12),
        ("mode='all'", "rows", 1, "[1.0] * len(rows)", 12),
        ("mode='groupwise', samples=2", "rows", 5, "[1.0] * len(rows)", 24),
        (
            "mode='groupwise', completion_params=[{'temperature': 0.1}, {'temperature': 0.9}]",
            "rows",
            5,
            "[1.0] * len(rows)",
            24,
        ),
    ],
    ids=["pointwise", "all", "groupwise", "settings"],
)
def test_a_scorer_that_kills_the_process_costs_no_rollout(
    tmp_path, engine, arguments, rows, number, score, requests
):
    (tmp_path / "test_eval.py").write_text(
        SUICIDAL.format(arguments=arguments, rows=rows, number=number, score=score)
    )
    process = command(tmp_path, engine)
    out, _ = process.communicate(timeout=250)
    assert process.returncode == -signal.SIGKILL, out
    settle(engine)
    before, count = durable_turns(tmp_path), len(engine.requests())
    scored = durable_scores(tmp_path)
    completed(command(tmp_path, engine))
    again = {name for name, _ in engine.requests()[count:]}
    assert not before & again
    assert len(before) + len(again) == requests
    (outcome,) = json.loads((tmp_path / "summary.json").read_text())["evaluations"]
    assert all(run["scored"] == run["rows"] and run["failed"] == 0 for run in outcome["runs"])
    calls = len((tmp_path / "count").read_text())
    left = 1 if "all" in arguments else 12 - len(scored)
    assert calls == number + left, "what was scored before the kill is not scored again"


ARMED = """
import os
from holdfast.testing import crash_points

if plan := os.environ.get("HOLDFAST_CRASH"):
    crash_points.arm(plan)
"""
LATE = """
from holdfast.evaluation import evaluation_test

@evaluation_test(
    dataset=[{"id": f"row{n}", "prompt": f"Say {n}."} for n in range(3)],
    mode="groupwise",
    seed=1,
    completion_params=[{"temperature": 0.1}, {"temperature": 0.9}],
)
def test_it(rows):
    return [float(len(row.last_assistant_message().content)) for row in rows]
"""


@pytest.mark.parametrize(
    "step", [17, *(pytest.param(item, marks=pytest.mark.exhaustive) for item in (1, 2, 3, 7))]
)
def test_a_comparison_of_settings_survives_death_after_every_few_commits(tmp_path, engine, step):
    place, quiet = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (place, quiet):
        folder.mkdir()
        (folder / "test_eval.py").write_text(LATE)
        (folder / "conftest.py").write_text(ARMED)
    completed(command(quiet, engine))
    deaths = 0
    while True:
        # Each process may commit a little more than the last: even the shortest way ends.
        process = command(place, engine, HOLDFAST_CRASH=f"after:{step + 2 * deaths}")
        out, _ = process.communicate(timeout=250)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, out
        deaths += 1
        assert deaths < 60
    assert deaths
    scores = [
        [run["agg_score"] for run in evaluation["runs"]]
        for folder in (place, quiet)
        for evaluation in json.loads((folder / "summary.json").read_text())["evaluations"]
    ]
    assert scores[0] == scores[1]
    assert not check(place / ".holdfast" / "evaluations.db").findings


OF_ROWS = f"""
import asyncio
from holdfast.evaluation import (
    EvaluationRow, Message, RolloutProcessor, SingleTurnRolloutProcessor, evaluation_test
)

class Own(RolloutProcessor):
    def __init__(self):
        self.single = SingleTurnRolloutProcessor()

    def __call__(self, rows, config):
        with open("calls.txt", "a") as file:
            file.writelines(f"{{row.input_metadata.row_id}}\\n" for row in rows)
        return [asyncio.create_task(self.after(task)) for task in self.single(rows, config)]

    async def after(self, task):
        row = await task
        await asyncio.sleep(0.01)
        length = len(row.messages[-1].content)
        row.messages.append(Message(role="user", content=f"length {{length}}"))
        return row

@evaluation_test(
    dataset=[{{"id": f"row{{n}}", "prompt": f"Talk about {{n}}."}} for n in range({ROWS})],
    rollout_processor=Own(),
    seed=5,
    max_concurrent_rollouts=8,
)
def test_own(row):
    assert row.messages[-1].content == f"length {{len(row.messages[-2].content)}}"
    return len(row.messages[-2].content) / 100
"""


def given_back(place: Path) -> set[str]:
    """The rows that their processor gave back, durably."""
    return {
        key.task
        for key, history in histories(place)
        if any(isinstance(step, ValueRecorded) for step in history.steps.values())
    }


def called(place: Path) -> list[str]:
    file = place / "calls.txt"
    return file.read_text().split() if file.exists() else []


def test_a_row_that_a_processor_of_rows_gave_back_is_never_asked_of_it_again(tmp_path, engine):
    place, quiet = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (place, quiet):
        folder.mkdir()
        (folder / "test_eval.py").write_text(OF_ROWS)
    completed(command(quiet, engine))
    for goal in (20, 60, 120):
        before, count = given_back(place) if called(place) else set(), len(called(place))
        turns = durable_turns(place) if count else set()
        settle(engine)
        engine.reset()
        process = command(place, engine)
        while process.poll() is None and len(called(place)) < count + goal:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not before & set(called(place)[count:]), "a row was rolled out again"
        assert not turns & {name for name, _ in engine.requests()}, "a turn was sampled again"
    before, count = given_back(place), len(called(place))
    completed(command(place, engine))
    assert before, "it was killed in the middle"
    assert not before & set(called(place)[count:])
    expected, fields = only_run(quiet), only_run(place)
    assert (fields["agg_score"], fields["rows"]) == (expected["agg_score"], ROWS)
