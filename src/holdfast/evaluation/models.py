"""The models under the name of eval-protocol's module for them: `from holdfast.evaluation.models
import EvaluationRow` is what a test file says after its imports were changed."""

from holdfast.evaluation.names import generate_id as generate_id
from holdfast.evaluation.result import EvaluateResult as EvaluateResult
from holdfast.evaluation.result import MetricResult as MetricResult
from holdfast.evaluation.result import StepOutput as StepOutput
from holdfast.evaluation.row import (
    ChatCompletionContentPartImageParam as ChatCompletionContentPartImageParam,
)
from holdfast.evaluation.row import (
    ChatCompletionContentPartParam as ChatCompletionContentPartParam,
)
from holdfast.evaluation.row import (
    ChatCompletionContentPartTextParam as ChatCompletionContentPartTextParam,
)
from holdfast.evaluation.row import (
    ChatCompletionMessageToolCall as ChatCompletionMessageToolCall,
)
from holdfast.evaluation.row import CompletionParams as CompletionParams
from holdfast.evaluation.row import CompletionUsage as CompletionUsage
from holdfast.evaluation.row import CostMetrics as CostMetrics
from holdfast.evaluation.row import EvalMetadata as EvalMetadata
from holdfast.evaluation.row import EvaluationRow as EvaluationRow
from holdfast.evaluation.row import EvaluationThreshold as EvaluationThreshold
from holdfast.evaluation.row import EvaluationThresholdDict as EvaluationThresholdDict
from holdfast.evaluation.row import ExecutionMetadata as ExecutionMetadata
from holdfast.evaluation.row import FunctionCall as FunctionCall
from holdfast.evaluation.row import InputMetadata as InputMetadata
from holdfast.evaluation.row import JSONType as JSONType
from holdfast.evaluation.row import Message as Message
from holdfast.evaluation.status import ErrorInfo as ErrorInfo
from holdfast.evaluation.status import Status as Status
from holdfast.evaluation.status import TerminationReason as TerminationReason
