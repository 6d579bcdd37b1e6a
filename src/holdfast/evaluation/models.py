"""The models under the name of eval-protocol's module: a ported test file has `from
holdfast.evaluation.models import EvaluationRow`."""

from holdfast.evaluation.rows.names import generate_id
from holdfast.evaluation.rows.result import EvaluateResult, MetricResult, StepOutput
from holdfast.evaluation.rows.row import (
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionMessageToolCall,
    CompletionParams,
    CompletionUsage,
    CostMetrics,
    EvalMetadata,
    EvaluationRow,
    EvaluationThreshold,
    EvaluationThresholdDict,
    ExecutionMetadata,
    FunctionCall,
    InputMetadata,
    JSONType,
    Message,
)
from holdfast.evaluation.rows.status import ErrorInfo, Status, TerminationReason

__all__ = [
    "ChatCompletionContentPartImageParam",
    "ChatCompletionContentPartParam",
    "ChatCompletionContentPartTextParam",
    "ChatCompletionMessageToolCall",
    "CompletionParams",
    "CompletionUsage",
    "CostMetrics",
    "ErrorInfo",
    "EvalMetadata",
    "EvaluateResult",
    "EvaluationRow",
    "EvaluationThreshold",
    "EvaluationThresholdDict",
    "ExecutionMetadata",
    "FunctionCall",
    "InputMetadata",
    "JSONType",
    "Message",
    "MetricResult",
    "Status",
    "StepOutput",
    "TerminationReason",
    "generate_id",
]
