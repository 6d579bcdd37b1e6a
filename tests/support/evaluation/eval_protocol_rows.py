"""Run by a Python that has eval-protocol: its own models, at the other end of a pipe.

`open`: rows from stdin, opened and written again. `make`: rows of theirs. `same`: pairs from
stdin, and whether theirs are equal. `names`: what their models have.
"""

import json
import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from eval_protocol import models
from eval_protocol.models import (
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartTextParam,
    EvalMetadata,
    EvaluateResult,
    EvaluationRow,
    EvaluationThreshold,
    ExecutionMetadata,
    InputMetadata,
    Message,
    MetricResult,
    Status,
    StepOutput,
)

MODELS = (
    *("ErrorInfo", "Status", "Message", "MetricResult", "StepOutput", "EvaluateResult"),
    *("ChatCompletionContentPartTextParam", "ChatCompletionContentPartImageParam"),
    *("InputMetadata", "EvaluationThreshold", "EvalMetadata", "CostMetrics"),
    *("ExecutionMetadata", "EvaluationRow"),
)


def opened() -> None:
    for line in sys.stdin:
        print(EvaluationRow.model_validate_json(line).model_dump_json(exclude_unset=True))


def made() -> list[EvaluationRow]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    text = ChatCompletionContentPartTextParam(text="see ü 🌊")
    image = ChatCompletionContentPartImageParam(image_url={"url": "data:,", "detail": "low"})
    row = EvaluationRow(
        messages=[
            Message(role="system", content="s"),
            Message(role="user", content=[text, image]),
            Message(role="assistant", content=None, tool_calls=[call], reasoning_content="r"),
            Message(
                role="tool",
                content="ok",
                tool_call_id="c",
                control_plane_step={"step": 0, "reward": 0.5, "terminated": True},
                weight=1,
                logprobs={"content": [{"logprob": -0.1}]},
            ),
        ],
        tools=[{"type": "function", "function": {"name": "f"}}],
        input_metadata=InputMetadata(
            row_id="r", completion_params={"model": "m"}, dataset_info={"a": [1, None]}, mine="kept"
        ),
        rollout_status=Status.rollout_finished(models.TerminationReason.MAX_STEPS, {"k": 1}),
        ground_truth={"deep": [True, 1.5, None]},
        evaluation_result=EvaluateResult(
            score=0.5,
            reason="half",
            metrics={"m": MetricResult(score=1, reason="", data={"k": [1]})},
            step_outputs=[StepOutput(step_index=0, base_reward=1.0, metrics={"k": 1})],
            trajectory_info={"k": 1},
            agg_score=0.25,
        ),
        execution_metadata=ExecutionMetadata(
            usage={"completion_tokens": 1, "prompt_tokens": 2, "total_tokens": 3},
            extra={"prompt_ids": [1, 2], "inference_logprobs": [[-0.5]]},
            finish_reason="stop",
            raw_output={"k": 1},
        ),
        eval_metadata=EvalMetadata(
            name="n",
            num_runs=2,
            aggregation_method="mean",
            status=Status.eval_finished(),
            passed_threshold=EvaluationThreshold(success=0.5, standard_error=0.1),
            passed=True,
        ),
        pid=7,
        unknown={"column": 1},
    )
    return [EvaluationRow(messages=[Message(role="user", content="hi")]), row]


def same() -> None:
    for line in sys.stdin:
        first, two = (EvaluationRow.model_validate_json(text) for text in json.loads(line))
        print(json.dumps(first == two))


def names() -> None:
    described = {}
    for name in MODELS:
        model = getattr(models, name)
        own = [n for n in vars(model) if not n.startswith("_") and n != "model_config"]
        fields = list(model.model_fields)
        described[name] = {"fields": fields, "others": [n for n in own if n not in fields]}
    print(json.dumps(described))


if __name__ == "__main__":
    match sys.argv[1]:
        case "open":
            opened()
        case "make":
            for item in made():
                print(item.model_dump_json())
        case "same":
            same()
        case "names":
            names()
