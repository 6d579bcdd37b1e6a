"""The evaluation in Holdfast."""

import traffic

from holdfast import tool
from holdfast.evaluation import AgentRolloutProcessor, SingleTurnRolloutProcessor, evaluation_test


@tool(contract="idempotent")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@evaluation_test(
    input_rows=[traffic.rows()],
    completion_params=[{"model": "fake", "temperature": 1.0, "max_tokens": traffic.TOKENS}],
    rollout_processor=(
        SingleTurnRolloutProcessor()
        if traffic.SHAPE == "single"
        else AgentRolloutProcessor(tools=[add])
    ),
    max_concurrent_rollouts=traffic.CONCURRENCY,
    policy=traffic.URL,
    mode="pointwise",
)
def test_rows(row):
    return float(traffic.EXPECTED in row.messages[-1].content)
