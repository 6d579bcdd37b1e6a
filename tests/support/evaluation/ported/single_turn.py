"""Math in one turn, as eval-protocol's benchmarks have it."""

import re
from typing import Any

from holdfast.evaluation.models import (
    ChatCompletionContentPartParam,
    ChatCompletionContentPartTextParam,
    EvaluateResult,
    EvaluationRow,
    Message,
    MetricResult,
)
from holdfast.evaluation.pytest import SingleTurnRolloutProcessor, evaluation_test

SYSTEM_PROMPT = "Reason step by step, and put your final answer within \\boxed{...}."


def _text(content: str | list[ChatCompletionContentPartParam] | None) -> str:
    if isinstance(content, list):
        return "".join(p.text for p in content if isinstance(p, ChatCompletionContentPartTextParam))
    return str(content or "")


def _answer(text: str) -> int | None:
    matches = re.findall(r"boxed{(\d+)}", text)
    return int(matches[-1]) if matches else None


def math_dataset_adapter(rows: list[dict[str, Any]]) -> list[EvaluationRow]:
    return [
        EvaluationRow(
            messages=[
                Message(role="system", content=SYSTEM_PROMPT),
                Message(role="user", content=str(r["question"])),
            ],
            ground_truth=str(r["answer"]),
        )
        for r in rows
    ]


@evaluation_test(
    input_dataset=["math.jsonl"],
    dataset_adapter=math_dataset_adapter,
    completion_params=[
        {"temperature": 0.0, "max_tokens": 512},
        {"temperature": 1.0, "max_tokens": 512, "extra_body": {"top_p": 0.9}},
    ],
    rollout_processor=SingleTurnRolloutProcessor(),
    aggregation_method="mean",
    passed_threshold=0.5,
    num_runs=2,
    max_concurrent_rollouts=16,
    mode="pointwise",
)
def test_math(row: EvaluationRow) -> EvaluationRow:
    assistant_msgs = [m for m in row.messages if m.role == "assistant"]
    content = _text(assistant_msgs[-1].content if assistant_msgs else "")
    answer, truth = _answer(content), int(row.ground_truth)
    is_valid = answer is not None
    score = 1.0 if is_valid and answer == truth else 0.0
    row.evaluation_result = EvaluateResult(
        score=score,
        reason="Answer correct" if score == 1.0 else "Answer incorrect",
        is_score_valid=is_valid,
        metrics={
            "exact_match": MetricResult(
                score=score, is_score_valid=is_valid, reason="", data={"extracted": answer}
            )
        },
    )
    return row
