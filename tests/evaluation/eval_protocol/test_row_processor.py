"""Processors that take rows and give rows, as eval-protocol's users write them."""

import asyncio
import json

import msgspec
import pytest

from holdfast.evaluation import (
    EvaluationRow,
    Message,
    RolloutProcessor,
    RolloutProcessorConfig,
    SingleTurnRolloutProcessor,
)
from holdfast.evaluation.eval_protocol.row_processor import RowsRolloutProcessor
from holdfast.records.errors import UsageError
from holdfast.records.step import ValueRecorded
from support.evaluation.evaluation_project import EvaluationProject
from support.rollout.kills import check_every_kill

HEAD = """
import asyncio
from pathlib import Path
from holdfast.evaluation import (
    EvaluateResult, Message, RolloutProcessor, SingleTurnRolloutProcessor, Status, evaluation_test
)
from holdfast.evaluation.exceptions import UnavailableError

def called(what):
    with Path("calls.txt").open("a") as file:
        file.write(f"{what}\\n")

"""
OWN = """
class Own(RolloutProcessor):
    def setup(self):
        called("setup")

    def __call__(self, rows, config):
        async def work(row):
            async with config.semaphore:
                called(row.input_metadata.row_id)
                row.messages.append(Message(role="assistant", content=f"{config.kwargs['word']}!"))
                row.execution_metadata.extra = {"steps_taken": 7}
                row.ground_truth = "changed"
                return row
        return [asyncio.create_task(work(row)) for row in rows]

    def cleanup(self):
        called("cleanup")

@evaluation_test(
    input_messages=[[[Message(role="user", content=f"{n}?")] for n in range(3)]],
    completion_params=[{"model": "somebody-elses"}],
    rollout_processor=Own(),
    rollout_processor_kwargs={"word": "yes"},
    passed_threshold=1.0,
)
def test_it(row):
    assert row.last_assistant_message().content == "yes!"
    assert row.execution_metadata.extra["steps_taken"] == 7
    assert row.rollout_status.is_finished()
    assert row.input_metadata.completion_params["model"] == "somebody-elses"
    return float(row.ground_truth == "changed")
"""
DELEGATING = """
class Delegating(RolloutProcessor):
    def __init__(self):
        super().__init__()
        self.single = SingleTurnRolloutProcessor()

    def __call__(self, rows, config):
        for row in rows:
            row.messages = [one for one in row.messages if one.role != "system"]
            row.ground_truth = "mine"
        tasks = self.single(rows, config)

        async def after(task):
            row = await task
            called("after")
            if Path("broken").exists():
                Path("broken").unlink()
                raise UnavailableError("gone for now")
            return row
        return [asyncio.create_task(after(task)) for task in tasks]

@evaluation_test(
    input_messages=[[[Message(role="system", content="no"), Message(role="user", content="hi")]]],
    rollout_processor=Delegating(),
    completion_params=COMPLETION_PARAMS,
    passed_threshold=1.0,
)
def test_it(row):
    assert [one.role for one in row.messages] == ["user", "assistant"]
    assert row.execution_metadata.usage.completion_tokens > 0
    return float(row.ground_truth == "mine")
"""


def written(project: EvaluationProject, code: str) -> None:
    (project.folder / "test_it.py").write_text(HEAD + code)


def calls(project: EvaluationProject) -> list[str]:
    return (project.folder / "calls.txt").read_text().split()


def test_what_it_makes_of_a_row_is_what_is_judged(project: EvaluationProject) -> None:
    written(project, OWN)
    result = project.run(policy=False)
    result.assert_outcomes(passed=1)
    texts = calls(project)
    assert (texts[0], texts[-1]) == ("setup", "cleanup")
    assert len(set(texts[1:-1])) == 3


def test_a_row_that_it_gave_back_is_never_asked_of_it_again(project: EvaluationProject) -> None:
    written(project, OWN)
    project.run(policy=False)
    # Scored anew: what it gave back comes from the journal.
    written(project, OWN.replace('return float(row.ground_truth == "changed")', "return 1.0"))
    project.run(policy=False).assert_outcomes(passed=1)
    assert len([text for text in calls(project) if text not in ("setup", "cleanup")]) == 3


def test_what_it_leaves_to_ours_is_recorded_turn_by_turn(project: EvaluationProject) -> None:
    written(project, DELEGATING.replace("COMPLETION_PARAMS", "None"))
    (project.folder / "broken").touch()
    result = project.run()
    result.assert_outcomes(passed=1)
    assert calls(project) == ["after", "after"], "the first attempt failed after its turn"
    assert project.engine.stats().requests == 1, "and the turn was not sampled again"


def test_the_rows_that_are_exported_are_those_that_it_gave_back(project: EvaluationProject) -> None:
    written(project, DELEGATING.replace("COMPLETION_PARAMS", "None"))
    project.run("--holdfast-output-dir", "rows").assert_outcomes(passed=1)
    (line,) = (project.folder / "rows" / "test_it.test_it.jsonl").read_text().splitlines()
    row = EvaluationRow.model_validate(json.loads(line))
    assert row.ground_truth == "mine"
    assert [message.role for message in row.messages] == ["user", "assistant"]
    assert row.evaluation_result is not None


def test_a_limit_that_the_policy_meets_in_it_is_an_outcome(project: EvaluationProject) -> None:
    written(project, DELEGATING.replace("COMPLETION_PARAMS", '[{"max_tokens": 1}]'))
    project.run("--holdfast-summary", "told.json")
    data = json.loads((project.folder / "told.json").read_text())
    assert "truncated" in json.dumps(data)
    assert calls(project) == ["after"]


def test_an_error_status_fails_its_row(project: EvaluationProject) -> None:
    written(
        project,
        OWN.replace(
            'row.ground_truth = "changed"',
            'row.rollout_status = Status.rollout_internal_error("it fell over")',
        ),
    )
    result = project.run(policy=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*InternalError: it fell over*"])


def test_completion_params_hold_for_the_whole_run(project: EvaluationProject) -> None:
    changed = DELEGATING.replace("COMPLETION_PARAMS", "None").replace(
        "tasks = self.single", 'config.completion_params["temperature"] = 0.1; tasks = self.single'
    )
    written(project, changed)
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'temperature'*completion_params*"])


class Twice(RolloutProcessor):
    """Two conversations of ours for one row, one after the other."""

    def __init__(self) -> None:
        self.single = SingleTurnRolloutProcessor()

    def __call__(self, rows, config):
        return [asyncio.create_task(self.twice(row, config)) for row in rows]

    async def twice(self, row, config):
        for _ in range(2):
            row.messages.append(Message(role="user", content="and?"))
            (task,) = self.single([row], config)
            row = await task
        return row


def test_a_kill_at_every_record_boundary_changes_nothing() -> None:
    whole = asyncio.run(check_every_kill(RowsRolloutProcessor(Twice()).rollout))
    assert whole.generated == 2
    (returned,) = [step for step in whole.history.steps.values() if isinstance(step, ValueRecorded)]
    row = msgspec.msgpack.decode(returned.value)["row"]
    assert [message["role"] for message in row["messages"]][-4:] == ["user", "assistant"] * 2


def test_ours_take_rows_within_an_evaluation_only() -> None:
    async def outside() -> None:
        config = RolloutProcessorConfig({}, "", asyncio.Semaphore(1))
        rows = [EvaluationRow(messages=[Message(role="user", content="hi")])]
        SingleTurnRolloutProcessor()(rows, config)

    with pytest.raises(UsageError, match="evaluate"):
        asyncio.run(outside())
