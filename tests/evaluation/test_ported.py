"""Test files of eval-protocol's users, with nothing changed but their imports, run as they are."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.testing import FakeEngine
from support.evaluation.evaluation_project import EvaluationProject
from support.paths import SUPPORT

HERE = SUPPORT / "evaluation"


@pytest.fixture
def files(project: EvaluationProject) -> Path:
    """The project's folder, with the files that the tests name."""
    folder = project.folder
    questions = [{"question": f"What is {n}?", "answer": 7} for n in range(3)]
    games = [
        {
            "id": f"game{n}",
            "system_prompt": "Count.",
            "environment_context": {"seed": n},
            "user_prompt_template": "{observation}",
        }
        for n in range(2)
    ]
    for name, rows in (("math", questions), ("gym", games)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    adder = {"command": sys.executable, "args": [str(HERE / "adder.py")], "env": []}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"adder": adder}}))
    shutil.copy(HERE / "gym_server.py", folder / "server.py")
    return folder


@contextmanager
def answering(project: EvaluationProject, *replies: str) -> Iterator[None]:
    with FakeEngine(replies=replies) as engine:
        project.engine = engine
        yield


def ported(project: EvaluationProject, name: str) -> pytest.RunResult:
    """Under a name that the suite itself does not collect."""
    shutil.copy(HERE / "ported" / f"{name}.py", project.folder / f"test_{name}.py")
    return project.run(f"test_{name}.py")


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_single_turn_math_in_two_settings(project: EvaluationProject, files: Path) -> None:
    with answering(project, "So it is \\boxed{7}."):
        ported(project, "single_turn").assert_outcomes(passed=2)
    assert [outcome["runs"][0]["agg_score"] for outcome in project.outcomes()] == [1.0, 1.0]
    assert [outcome["runs"][0]["rows"] for outcome in project.outcomes()] == [6, 6], (
        "three rows, two runs"
    )


def test_scores_that_are_not_valid_are_in_no_mean(project: EvaluationProject, files: Path) -> None:
    with answering(project, "Nobody knows."):
        ported(project, "single_turn").assert_outcomes(failed=2)


def test_messages_recorded_rows_and_all_at_once(project: EvaluationProject, files: Path) -> None:
    with answering(project, "Paris, or Lima."):
        ported(project, "messages").assert_outcomes(passed=3)
    scores = sorted(outcome["runs"][0]["agg_score"] for outcome in project.outcomes())
    assert scores == [pytest.approx(1 / 3), 1.0, 1.0]


def test_settings_that_are_judged_against_each_other(
    project: EvaluationProject, files: Path
) -> None:
    ported(project, "groupwise").assert_outcomes(passed=1)
    (outcome,) = project.outcomes()
    assert len(outcome["runs"]) == 3
    assert sum(run["agg_score"] for run in outcome["runs"]) == pytest.approx(1.5)


def test_an_agent_with_the_tools_of_an_mcp_server(project: EvaluationProject, files: Path) -> None:
    with answering(project, f"@0 {call('add', a=2, b=3)}", "@1 It is 5."):
        ported(project, "agent_mcp").assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0


def test_episodes_of_a_gym(project: EvaluationProject, files: Path) -> None:
    replies = [f"@{turn} {call('say', number=turn + 1)}" for turn in range(3)]
    with answering(project, *replies):
        ported(project, "gym").assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 0.75
