"""Reward functions of eval-protocol, imported from there, know the rows that they are given here.

They look at the class of a message first, and give a 0 to one that they do not know. The package
here is a small one of that name, in a process of its own; all reward functions of the real
one are compared where HOLDFAST_EVAL_PROTOCOL_PYTHON names a Python that has it.
"""

import os
import subprocess
from pathlib import Path

import pytest

import holdfast
from support.evaluation.evaluation_project import EvaluationProject
from support.paths import SUPPORT

PYTHON = os.environ.get("HOLDFAST_EVAL_PROTOCOL_PYTHON", "")
"""A Python that has eval-protocol, and what Holdfast needs."""
MODELS = """
from pydantic import BaseModel

class Message(BaseModel):
    role: str
    content: str | None = None

class EvaluateResult(BaseModel):
    score: float
    is_score_valid: bool = True
    reason: str | None = None
    metrics: dict = {}

class EvaluationRow(BaseModel):
    messages: list[Message] = []
    evaluation_result: EvaluateResult | None = None
"""
REWARDS = """
from eval_protocol.models import EvaluateResult, EvaluationRow, Message

def length_reward(messages):
    known = isinstance(messages[-1], Message)
    return EvaluateResult(score=float(known), reason=type(messages[-1]).__module__)

def row_reward(row):
    return EvaluateResult(score=float(isinstance(row, EvaluationRow)))
"""


@pytest.fixture
def theirs(project: EvaluationProject, monkeypatch: pytest.MonkeyPatch) -> EvaluationProject:
    installed = project.folder / "site-packages"
    package = installed / "eval_protocol"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("models", MODELS), ("rewards", REWARDS)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(project.folder), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(installed))
    return project


def test_their_functions_score_our_rows_as_their_own(theirs: EvaluationProject) -> None:
    theirs.write(
        """
        from eval_protocol.rewards import length_reward, row_reward

        @evaluation_test(dataset=ROWS)
        def test_messages(row):
            row.evaluation_result = length_reward(row.messages)
            return row

        @evaluation_test(dataset=ROWS)
        def test_made(row):
            return length_reward([Message(role="assistant", content="mine")])

        @evaluation_test(dataset=ROWS)
        def test_rows(row):
            assert row.last_assistant_message().role == "assistant"
            return row_reward(row)

        @evaluation_test(dataset=ROWS)
        def test_late(row):
            from eval_protocol.rewards import length_reward as late
            return late(row.messages)
        """
    )
    with theirs.apart() as process:
        message, _ = process.communicate()
    assert process.returncode == 0, message
    scores = {outcome["test"]: outcome["runs"][0]["agg_score"] for outcome in theirs.outcomes()}
    assert scores == {
        f"test_it.py::test_{item}": 1.0 for item in ("late", "made", "messages", "rows")
    }


def test_a_row_that_met_them_too_late_fails_with_the_reason(theirs: EvaluationProject) -> None:
    theirs.write(
        "def late(row):\n    from eval_protocol.rewards import row_reward\n"
        "    return row_reward(row)\n",
        "helping.py",
        head="",
    )
    theirs.write(
        """
        from helping import late

        @evaluation_test(dataset=ROWS, max_concurrent_evaluations=1)
        def test_it(row):
            return late(row)
        """
    )
    with theirs.apart() as process:
        message, _ = process.communicate()
    assert process.returncode == 1
    assert "import it at the top of the evaluation's file" in message
    run = theirs.only()
    assert (run["failed"], run["scored"], run["agg_score"]) == (1, 3, 1.0), "no zero"


@pytest.mark.skipif(not PYTHON, reason="HOLDFAST_EVAL_PROTOCOL_PYTHON is not set")
def test_the_real_ones_give_what_they_give_to_their_own() -> None:
    script = SUPPORT / "evaluation" / "eval_protocol_rewards.py"
    done = subprocess.run(
        [PYTHON, script],
        env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
