"""Rows and eval-protocol's own: opened there, written there, read here, and the other way round.

Runs where HOLDFAST_EVAL_PROTOCOL_PYTHON names a Python that has eval-protocol.
"""

import json
import os
import subprocess

import pytest

from holdfast.engine.export.export import What
from holdfast.evaluation import models as ours
from holdfast.evaluation.eval_protocol.gym.processor import MCPGymRolloutProcessor
from holdfast.evaluation.rows.convert import row_from, row_of, task_of
from holdfast.evaluation.rows.result import EvaluateResult, MetricResult
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.evaluation.running.scorer import score_of
from holdfast.records.errors import EngineUnavailable, Truncated
from holdfast.records.task import own
from holdfast.records.view import TrajectoryView
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from support.engine.local_run import LocalRun
from support.evaluation.gym_runs import SCRIPT as GYM
from support.evaluation.gym_runs import yard_of
from support.evaluation.performed import adding, performed
from support.paths import SUPPORT
from support.rollout.stage import Oracle

PYTHON = os.environ.get("HOLDFAST_EVAL_PROTOCOL_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="HOLDFAST_EVAL_PROTOCOL_PYTHON is not set")


def theirs(what: str, *lines: str) -> list[str]:
    script = SUPPORT / "evaluation" / "eval_protocol_rows.py"
    done = subprocess.run(
        [PYTHON, str(script), what],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.startswith(("{", "t", "f"))]


def exported() -> list[dict]:
    """Rows of all layouts and endings."""
    group = LocalRun("a", "b", samples=3)
    group.run(TrainingRolloutProcessor(), lambda view: 0.5)
    result = EvaluateResult(score=1, metrics={"m": MetricResult(score=0.5, reason="so")})
    scored = performed(adding, scorer=lambda view: score_of(result, "judge"))

    async def cut(t):
        t.add(*t.task.messages)
        await t.generate()
        raise Truncated("max_turns")

    failed = performed(
        adding, policy=Oracle(lambda request: EngineUnavailable("gone")), max_retry=0
    )
    game = yard_of()
    game.run(MCPGymRolloutProcessor(GYM))
    return [
        *group.rows(What.ROWS),
        *scored.rows(What.ROWS),
        *scored.rows(What.ROWS, turn_traces=True),
        *performed(cut).rows(What.ROWS),
        *failed.rows(What.ROWS),
        *game.rows(What.ROWS),
    ]


def test_the_export_opens_in_their_model_and_comes_back_the_same():
    lines = [json.dumps(row) for row in exported()]
    assert len(lines) == 7
    back = theirs("open", *lines)
    assert len(back) == len(lines)
    for line, again in zip(lines, back, strict=True):
        mine, read = json.loads(line), json.loads(again)
        opened = EvaluationRow.model_validate(read).model_dump(exclude_unset=True)
        assert opened == EvaluationRow.model_validate(mine).model_dump(exclude_unset=True)


def test_the_rows_that_scorers_see_open_there_too():
    local = performed(adding)
    ((name, history),) = local.histories().items()
    assert name == "a/0"
    from holdfast.records.trajectory import TrajectoryKey

    row = row_of(TrajectoryView(TrajectoryKey("run", "a", 0), local.tasks[0], history), local.spec)
    (back,) = theirs("open", row.model_dump_json())
    assert EvaluationRow.model_validate_json(back) == row


def test_their_rows_come_through_ours_and_through_tasks_unchanged():
    made = theirs("make")
    assert len(made) == 2
    pairs = []
    for line in made:
        row = EvaluationRow.model_validate_json(line)
        task = own(task_of(row))
        pairs.append(json.dumps([line, row.model_dump_json()]))
        pairs.append(json.dumps([line, row_from(task).model_dump_json()]))
    assert theirs("same", *pairs) == ["true"] * 4


def test_our_models_have_every_name_that_theirs_have():
    (message,) = theirs("names")
    for name, described in json.loads(message).items():
        model = getattr(ours, name)
        assert set(described["fields"]) <= set(model.model_fields), name
        missing = [item for item in described["others"] if not hasattr(model, item)]
        assert missing == [], name
