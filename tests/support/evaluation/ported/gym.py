"""Episodes of an MCP gym, as eval-protocol's frozen lake has them."""

from typing import Any

from holdfast.evaluation.models import EvaluateResult, EvaluationRow, InputMetadata, Message
from holdfast.evaluation.pytest import MCPGymRolloutProcessor, evaluation_test


def gym_to_evaluation_row(data: list[dict[str, Any]]) -> list[EvaluationRow]:
    return [
        EvaluationRow(
            messages=[Message(role="system", content=row["system_prompt"])],
            input_metadata=InputMetadata(
                row_id=row["id"],
                dataset_info={
                    "environment_context": row["environment_context"],
                    "user_prompt_template": row["user_prompt_template"],
                },
            ),
        )
        for row in data
    ]


@evaluation_test(
    input_dataset=["gym.jsonl"],
    dataset_adapter=gym_to_evaluation_row,
    completion_params=[{"temperature": 0.0, "max_tokens": 4096}],
    rollout_processor=MCPGymRolloutProcessor(),
    passed_threshold=0.66,
    num_runs=1,
    max_concurrent_rollouts=3,
    mode="pointwise",
    server_script_path="server.py",
    steps=10,
)
def test_counting(row: EvaluationRow) -> EvaluationRow:
    score = row.get_total_reward()
    assert row.get_terminated()
    row.evaluation_result = EvaluateResult(
        score=score, reason="won" if score == 0.75 else "lost", step_outputs=None
    )
    return row
