"""What else a file that was written for eval-protocol finds under its names."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.evaluation import (
    EPParameters,
    EvaluateResult,
    EvaluationRow,
    JournalDatasetLogger,
    Message,
    SingleTurnRolloutProcessor,
    evaluation_test,
)
from holdfast.evaluation.data.dataset import datasets_of
from holdfast.evaluation.exceptions import (
    InvalidArgumentError,
    ResponseQualityError,
    UnavailableError,
    exception_for_status_code,
)
from holdfast.records.errors import Cause, UsageError
from holdfast.records.failure import classify
from holdfast.records.sampling import json_of
from support.evaluation.evaluation_project import EvaluationProject

LOGGER = """
from holdfast.evaluation import DatasetLogger

class Kept(DatasetLogger):
    def __init__(self):
        self.rows = []
    def log(self, row):
        self.rows.append(row)
    def read(self, rollout_id=None):
        return self.rows

KEPT = Kept()

@evaluation_test(dataset=ROWS, logger=KEPT, mode=MODE)
def test_it(ROWS_OR_ROW):
    return JUDGED

def test_what_was_logged():
    assert len(KEPT.rows) == 4
    assert all(row.evaluation_result.score == 0.5 for row in KEPT.rows)
    assert all(row.execution_metadata.invocation_id == "tuesday" for row in KEPT.rows)
"""


@pytest.mark.parametrize(
    ("mode", "argument", "judged"),
    [("pointwise", "row", "0.5"), ("all", "rows", "[0.5] * len(rows)")],
)
def test_a_logger_is_given_every_row_that_was_judged(
    project: EvaluationProject,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    argument: str,
    judged: str,
) -> None:
    monkeypatch.setenv("EP_INVOCATION_ID", "tuesday")
    code = LOGGER.replace("MODE", repr(mode)).replace("ROWS_OR_ROW", argument)
    project.write(code.replace("JUDGED", judged))
    project.run().assert_outcomes(passed=2)


def test_the_default_logger_keeps_rows_in_the_journal(tmp_path: Path) -> None:
    logger = JournalDatasetLogger(tmp_path / "rows.db")
    row = EvaluationRow(messages=[Message(role="user", content="hi")])
    row.execution_metadata.rollout_id = "mine"
    logger.log(row)
    row.messages.append(Message(role="assistant", content="hello"))
    row.evaluation_result = EvaluateResult(score=0.25)
    logger.log(row)
    (kept,) = logger.read("mine")
    assert [message.content for message in kept.messages] == ["hi", "hello"]
    assert kept.evaluation_result is not None
    assert kept.evaluation_result.score == 0.25
    assert logger.read("another") == []


def test_parameters_are_where_trainers_look_for_them() -> None:
    processor = SingleTurnRolloutProcessor()

    @evaluation_test(
        input_messages=[[[Message(role="user", content="hi")]]],
        rollout_processor=processor,
        completion_params=[{"model": "m"}],
        num_runs=3,
    )
    def test_it(row):
        return 1.0

    message = test_it.__ep_params__
    assert isinstance(message, EPParameters)
    assert (message.num_runs, message.rollout_processor) == (3, processor)
    assert message.completion_params == [{"model": "m"}]
    assert message.steps == 30


def test_which_errors_are_worth_another_try() -> None:
    assert classify(UnavailableError("x")) == (Cause.INFRASTRUCTURE, True)
    assert classify(ResponseQualityError("x")) == (Cause.INFRASTRUCTURE, True)
    assert classify(InvalidArgumentError("x")) == (Cause.CODE, False)
    assert isinstance(exception_for_status_code(14, "x"), UnavailableError)
    assert [exception_for_status_code(code) for code in (0, 100, 101, 102, 99)] == [None] * 5


def test_a_schema_that_stands_beside_json_object_is_one() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    body = json_of({"type": "json_object", "schema": schema})
    assert json.loads(str(body)) == schema


def test_single_turns_are_sampled_as_the_processors_kwargs_say(project: EvaluationProject) -> None:
    project.write(
        """
        from holdfast.evaluation import SingleTurnRolloutProcessor

        @evaluation_test(
            dataset=ROWS[:1],
            rollout_processor=SingleTurnRolloutProcessor(),
            rollout_processor_kwargs={"extra_body": {"max_tokens": 1}},
        )
        def test_it(row):
            assert row.execution_metadata.usage.completion_tokens == 1
            return 1.0
        """
    )
    project.run().assert_outcomes(passed=1)
    with pytest.raises(UsageError, match="'model' belongs in the evaluation"):
        SingleTurnRolloutProcessor(completion_params={"model": "another"})


# --- data sets behind addresses


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "wrong.jsonl").write_text('{"prompt": "a"}\nnonsense\n')

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def rows_of(source: str) -> list[EvaluationRow]:
    (result,) = datasets_of(input_dataset=source)
    return asyncio.run(result.rows())


def test_a_data_set_behind_an_address_is_fetched(address: str) -> None:
    assert [row.messages[0].content for row in rows_of(f"{address}/rows.jsonl")] == ["a", "b"]


def test_what_is_wrong_with_it_is_told_with_its_address(address: str) -> None:
    with pytest.raises(UsageError, match=f"{address}/wrong.jsonl:2"):
        rows_of(f"{address}/wrong.jsonl")
    with pytest.raises(UsageError, match="answers 404"):
        rows_of(f"{address}/missing.jsonl")
