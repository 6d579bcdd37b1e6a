"""The evaluation in eval-protocol, with its own environment's Python."""

import json
import os
from pathlib import Path

import traffic
from eval_protocol.models import EvaluateResult, EvaluationRow
from eval_protocol.pytest import (
    AgentRolloutProcessor,
    SingleTurnRolloutProcessor,
    evaluation_test,
)

SERVERS = {"mcpServers": {"adder": {"type": "http", "url": os.environ.get("BENCH_ADDER", "")}}}
CONFIG = Path.cwd() / "mcp.json"
CONFIG.write_text(json.dumps(SERVERS))
IS_SINGLE = traffic.SHAPE == "single"


@evaluation_test(
    input_rows=[[EvaluationRow(**row) for row in traffic.rows()]],
    completion_params=[
        {
            "model": "openai/fake", "temperature": 1.0, "max_tokens": traffic.TOKENS,
            "api_base": f"{traffic.URL}/v1", "base_url": f"{traffic.URL}/v1", "api_key": "none",
            "logprobs": True, "extra_body": {"return_token_ids": True},
        }
    ],
    rollout_processor=SingleTurnRolloutProcessor() if IS_SINGLE else AgentRolloutProcessor(),
    mcp_config_path="" if IS_SINGLE else str(CONFIG),
    max_concurrent_rollouts=traffic.CONCURRENCY,
    mode="pointwise",
)  # fmt: skip
def test_rows(row: EvaluationRow) -> EvaluationRow:
    score = float(traffic.EXPECTED in str(row.messages[-1].content))
    row.evaluation_result = EvaluateResult(score=score, reason="")
    return row
