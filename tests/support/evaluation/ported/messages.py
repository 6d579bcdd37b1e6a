"""Messages in the decorator, an async evaluation, preprocessing, and rows that are judged as they
are."""

from holdfast.evaluation import assistant_to_ground_truth
from holdfast.evaluation.models import (
    EvaluateResult,
    EvaluationRow,
    InputMetadata,
    Message,
    MetricResult,
)
from holdfast.evaluation.pytest import (
    NoOpRolloutProcessor,
    SingleTurnRolloutProcessor,
    evaluation_test,
)


@evaluation_test(
    input_messages=[
        [
            [Message(role="user", content="What is the capital of France?")],
            [Message(role="user", content="What is the capital of Peru?")],
        ]
    ],
    completion_params=[{"temperature": 0.0}],
    rollout_processor=SingleTurnRolloutProcessor(),
    passed_threshold={"success": 0.5, "standard_error": 1.0},
    num_runs=1,
)
async def test_capitals(row: EvaluationRow) -> EvaluationRow:
    last = row.last_assistant_message()
    assert last is not None
    assert row.execution_metadata.finish_reason == "stop"
    assert row.execution_metadata.usage.completion_tokens > 0
    assert row.eval_metadata.name == "test_capitals"
    assert row.rollout_status.is_finished()
    row.evaluation_result = EvaluateResult(score=1.0 if last.content else 0.0, reason="answered")
    return row


@evaluation_test(
    input_rows=[
        [
            EvaluationRow(
                messages=[
                    Message(role="user", content="2+2?"),
                    Message(role="assistant", content="4"),
                ],
                input_metadata=InputMetadata(row_id="sum", dataset_info={"level": "easy"}),
            )
        ]
    ],
    rollout_processor=NoOpRolloutProcessor(),
    preprocess_fn=assistant_to_ground_truth,
    mode="pointwise",
)
def test_recorded(row: EvaluationRow) -> EvaluationRow:
    assert row.input_metadata.row_id == "sum"
    assert row.input_metadata.dataset_info["level"] == "easy"
    assert row.input_metadata.session_data["mode"] == "pointwise"
    score = 1.0 if row.ground_truth == "assistant: 4" else 0.0
    row.evaluation_result = EvaluateResult(
        score=score, metrics={"kept": MetricResult(score=score, reason="as recorded")}
    )
    return row


@evaluation_test(
    input_messages=[[[Message(role="user", content=f"Say {n}.")] for n in range(3)]],
    completion_params=[{"temperature": 0.0}],
    mode="all",
)
def test_all_rows(rows: list[EvaluationRow]) -> list[EvaluationRow]:
    assert len(rows) == 3
    for row in rows:
        row.evaluation_result = EvaluateResult(score=1.0 / len(rows), reason="shared")
    return rows
