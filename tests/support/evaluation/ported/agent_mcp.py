"""An agent whose tools are those of the MCP servers of a file."""

from holdfast.evaluation.models import EvaluateResult, EvaluationRow, Message
from holdfast.evaluation.pytest import AgentRolloutProcessor, evaluation_test


@evaluation_test(
    input_messages=[
        [
            [
                Message(role="system", content="Use the tools."),
                Message(role="user", content="What is 2 and 3 together?"),
            ]
        ]
    ],
    completion_params=[{"temperature": 0.0}],
    rollout_processor=AgentRolloutProcessor(),
    mcp_config_path="mcp.json",
    passed_threshold=1.0,
    num_runs=1,
    mode="pointwise",
)
def test_agent_adds(row: EvaluationRow) -> EvaluationRow:
    called: list[str] = [
        call.function.name for m in row.get_assistant_messages() for call in m.tool_calls or []
    ]
    answered = [m.content for m in row.messages if m.role == "tool"]
    score = 1.0 if called == ["add"] and answered == ["5"] else 0.0
    row.evaluation_result = EvaluateResult(score=score, reason=f"{called} gave {answered}")
    return row
