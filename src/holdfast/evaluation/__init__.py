"""Evaluations as pytest tests: run anywhere, killed at any moment, resumed by the same command.

The names below are the whole public API. They are imported when first used: what a test session
that has no evaluation in it pays is next to nothing. Where eval-protocol has a name for the same
thing, it is that name, whichever of its modules has it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.scorer import Score as Score
    from holdfast.evaluation.agent_processor import AgentRolloutProcessor as AgentRolloutProcessor
    from holdfast.evaluation.comparison import compare as compare
    from holdfast.evaluation.dataset import Dataset as Dataset
    from holdfast.evaluation.dataset import default_dataset_adapter as default_dataset_adapter
    from holdfast.evaluation.dataset_logger import DatasetLogger as DatasetLogger
    from holdfast.evaluation.dataset_logger import JournalDatasetLogger as JournalDatasetLogger
    from holdfast.evaluation.dataset_logger import default_logger as default_logger
    from holdfast.evaluation.decorator import evaluation_test as evaluation_test
    from holdfast.evaluation.exceptions import EvalProtocolError as EvalProtocolError
    from holdfast.evaluation.exceptions import ResponseQualityError as ResponseQualityError
    from holdfast.evaluation.exceptions import (
        exception_for_status_code as exception_for_status_code,
    )
    from holdfast.evaluation.gym_processor import MCPGymRolloutProcessor as MCPGymRolloutProcessor
    from holdfast.evaluation.importing import results_from as results_from
    from holdfast.evaluation.langgraph_processor import (
        LangGraphRolloutProcessor as LangGraphRolloutProcessor,
    )
    from holdfast.evaluation.loaders import DataLoaderResult as DataLoaderResult
    from holdfast.evaluation.loaders import DynamicDataLoader as DynamicDataLoader
    from holdfast.evaluation.loaders import EvaluationDataLoader as EvaluationDataLoader
    from holdfast.evaluation.loaders import InlineDataLoader as InlineDataLoader
    from holdfast.evaluation.names import generate_id as generate_id
    from holdfast.evaluation.openenv_processor import (
        OpenEnvRolloutProcessor as OpenEnvRolloutProcessor,
    )
    from holdfast.evaluation.options import Options as Options
    from holdfast.evaluation.outcome import EvaluationFailed as EvaluationFailed
    from holdfast.evaluation.outcome import Outcome as Outcome
    from holdfast.evaluation.parameters import EPParameters as EPParameters
    from holdfast.evaluation.post_processor import (
        NoOpRolloutResultPostProcessor as NoOpRolloutResultPostProcessor,
    )
    from holdfast.evaluation.post_processor import (
        RolloutResultPostProcessor as RolloutResultPostProcessor,
    )
    from holdfast.evaluation.processors import NoOpRolloutProcessor as NoOpRolloutProcessor
    from holdfast.evaluation.processors import (
        SingleTurnRolloutProcessor as SingleTurnRolloutProcessor,
    )
    from holdfast.evaluation.pydantic_ai_processor import (
        PydanticAgentRolloutProcessor as PydanticAgentRolloutProcessor,
    )
    from holdfast.evaluation.remote_messages import InitRequest as InitRequest
    from holdfast.evaluation.remote_messages import RolloutMetadata as RolloutMetadata
    from holdfast.evaluation.remote_messages import StatusResponse as StatusResponse
    from holdfast.evaluation.remote_processor import (
        RemoteRolloutProcessor as RemoteRolloutProcessor,
    )
    from holdfast.evaluation.result import EvaluateResult as EvaluateResult
    from holdfast.evaluation.result import MetricResult as MetricResult
    from holdfast.evaluation.result import StepOutput as StepOutput
    from holdfast.evaluation.results import Results as Results
    from holdfast.evaluation.results import results_of as results_of
    from holdfast.evaluation.retrying import BackoffConfig as BackoffConfig
    from holdfast.evaluation.retrying import ExceptionHandlerConfig as ExceptionHandlerConfig
    from holdfast.evaluation.retrying import (
        get_default_exception_handler_config as get_default_exception_handler_config,
    )
    from holdfast.evaluation.row import (
        ChatCompletionContentPartImageParam as ChatCompletionContentPartImageParam,
    )
    from holdfast.evaluation.row import (
        ChatCompletionContentPartParam as ChatCompletionContentPartParam,
    )
    from holdfast.evaluation.row import (
        ChatCompletionContentPartTextParam as ChatCompletionContentPartTextParam,
    )
    from holdfast.evaluation.row import CompletionParams as CompletionParams
    from holdfast.evaluation.row import CompletionUsage as CompletionUsage
    from holdfast.evaluation.row import CostMetrics as CostMetrics
    from holdfast.evaluation.row import EvalMetadata as EvalMetadata
    from holdfast.evaluation.row import EvaluationRow as EvaluationRow
    from holdfast.evaluation.row import EvaluationThreshold as EvaluationThreshold
    from holdfast.evaluation.row import ExecutionMetadata as ExecutionMetadata
    from holdfast.evaluation.row import InputMetadata as InputMetadata
    from holdfast.evaluation.row import Message as Message
    from holdfast.evaluation.row_processor import RolloutProcessor as RolloutProcessor
    from holdfast.evaluation.row_processor import RolloutProcessorConfig as RolloutProcessorConfig
    from holdfast.evaluation.status import ErrorInfo as ErrorInfo
    from holdfast.evaluation.status import Status as Status
    from holdfast.evaluation.status import TerminationReason as TerminationReason
    from holdfast.evaluation.turns import assistant_to_ground_truth as assistant_to_ground_truth
    from holdfast.evaluation.turns import create_rows_from_indices as create_rows_from_indices
    from holdfast.evaluation.turns import filter_longest_conversation as filter_longest_conversation
    from holdfast.evaluation.turns import (
        multi_turn_assistant_to_ground_truth as multi_turn_assistant_to_ground_truth,
    )
    from holdfast.evaluation.verdict import verdict_of as verdict_of
    from holdfast.gateway.black_box import BlackBoxRolloutProcessor as BlackBoxRolloutProcessor
    from holdfast.rollout.agent import EnvironmentRolloutProcessor as EnvironmentRolloutProcessor

_WHERE = {
    "AgentRolloutProcessor": "holdfast.evaluation.agent_processor",
    "BackoffConfig": "holdfast.evaluation.retrying",
    "BlackBoxRolloutProcessor": "holdfast.gateway.black_box",
    "ChatCompletionContentPartImageParam": "holdfast.evaluation.row",
    "ChatCompletionContentPartParam": "holdfast.evaluation.row",
    "ChatCompletionContentPartTextParam": "holdfast.evaluation.row",
    "CompletionParams": "holdfast.evaluation.row",
    "CompletionUsage": "holdfast.evaluation.row",
    "CostMetrics": "holdfast.evaluation.row",
    "DataLoaderResult": "holdfast.evaluation.loaders",
    "Dataset": "holdfast.evaluation.dataset",
    "DatasetLogger": "holdfast.evaluation.dataset_logger",
    "DynamicDataLoader": "holdfast.evaluation.loaders",
    "EPParameters": "holdfast.evaluation.parameters",
    "EnvironmentRolloutProcessor": "holdfast.rollout.agent",
    "ErrorInfo": "holdfast.evaluation.status",
    "EvalMetadata": "holdfast.evaluation.row",
    "EvalProtocolError": "holdfast.evaluation.exceptions",
    "EvaluateResult": "holdfast.evaluation.result",
    "EvaluationDataLoader": "holdfast.evaluation.loaders",
    "EvaluationFailed": "holdfast.evaluation.outcome",
    "EvaluationRow": "holdfast.evaluation.row",
    "EvaluationThreshold": "holdfast.evaluation.row",
    "ExceptionHandlerConfig": "holdfast.evaluation.retrying",
    "ExecutionMetadata": "holdfast.evaluation.row",
    "InitRequest": "holdfast.evaluation.remote_messages",
    "InlineDataLoader": "holdfast.evaluation.loaders",
    "InputMetadata": "holdfast.evaluation.row",
    "JournalDatasetLogger": "holdfast.evaluation.dataset_logger",
    "LangGraphRolloutProcessor": "holdfast.evaluation.langgraph_processor",
    "MCPGymRolloutProcessor": "holdfast.evaluation.gym_processor",
    "Message": "holdfast.evaluation.row",
    "MetricResult": "holdfast.evaluation.result",
    "NoOpRolloutProcessor": "holdfast.evaluation.processors",
    "NoOpRolloutResultPostProcessor": "holdfast.evaluation.post_processor",
    "OpenEnvRolloutProcessor": "holdfast.evaluation.openenv_processor",
    "Options": "holdfast.evaluation.options",
    "Outcome": "holdfast.evaluation.outcome",
    "PydanticAgentRolloutProcessor": "holdfast.evaluation.pydantic_ai_processor",
    "RemoteRolloutProcessor": "holdfast.evaluation.remote_processor",
    "ResponseQualityError": "holdfast.evaluation.exceptions",
    "Results": "holdfast.evaluation.results",
    "RolloutMetadata": "holdfast.evaluation.remote_messages",
    "RolloutProcessor": "holdfast.evaluation.row_processor",
    "RolloutProcessorConfig": "holdfast.evaluation.row_processor",
    "RolloutResultPostProcessor": "holdfast.evaluation.post_processor",
    "Score": "holdfast.engine.scorer",
    "SingleTurnRolloutProcessor": "holdfast.evaluation.processors",
    "Status": "holdfast.evaluation.status",
    "StatusResponse": "holdfast.evaluation.remote_messages",
    "StepOutput": "holdfast.evaluation.result",
    "TerminationReason": "holdfast.evaluation.status",
    "assistant_to_ground_truth": "holdfast.evaluation.turns",
    "compare": "holdfast.evaluation.comparison",
    "create_rows_from_indices": "holdfast.evaluation.turns",
    "default_dataset_adapter": "holdfast.evaluation.dataset",
    "default_logger": "holdfast.evaluation.dataset_logger",
    "evaluation_test": "holdfast.evaluation.decorator",
    "exception_for_status_code": "holdfast.evaluation.exceptions",
    "filter_longest_conversation": "holdfast.evaluation.turns",
    "generate_id": "holdfast.evaluation.names",
    "get_default_exception_handler_config": "holdfast.evaluation.retrying",
    "multi_turn_assistant_to_ground_truth": "holdfast.evaluation.turns",
    "results_from": "holdfast.evaluation.importing",
    "results_of": "holdfast.evaluation.results",
    "verdict_of": "holdfast.evaluation.verdict",
}
__all__ = [
    "AgentRolloutProcessor",
    "BackoffConfig",
    "BlackBoxRolloutProcessor",
    "ChatCompletionContentPartImageParam",
    "ChatCompletionContentPartParam",
    "ChatCompletionContentPartTextParam",
    "CompletionParams",
    "CompletionUsage",
    "CostMetrics",
    "DataLoaderResult",
    "Dataset",
    "DatasetLogger",
    "DynamicDataLoader",
    "EPParameters",
    "EnvironmentRolloutProcessor",
    "ErrorInfo",
    "EvalMetadata",
    "EvalProtocolError",
    "EvaluateResult",
    "EvaluationDataLoader",
    "EvaluationFailed",
    "EvaluationRow",
    "EvaluationThreshold",
    "ExceptionHandlerConfig",
    "ExecutionMetadata",
    "InitRequest",
    "InlineDataLoader",
    "InputMetadata",
    "JournalDatasetLogger",
    "LangGraphRolloutProcessor",
    "MCPGymRolloutProcessor",
    "Message",
    "MetricResult",
    "NoOpRolloutProcessor",
    "NoOpRolloutResultPostProcessor",
    "OpenEnvRolloutProcessor",
    "Options",
    "Outcome",
    "PydanticAgentRolloutProcessor",
    "RemoteRolloutProcessor",
    "ResponseQualityError",
    "Results",
    "RolloutMetadata",
    "RolloutProcessor",
    "RolloutProcessorConfig",
    "RolloutResultPostProcessor",
    "Score",
    "SingleTurnRolloutProcessor",
    "Status",
    "StatusResponse",
    "StepOutput",
    "TerminationReason",
    "assistant_to_ground_truth",
    "compare",
    "create_rows_from_indices",
    "default_dataset_adapter",
    "default_logger",
    "evaluation_test",
    "exception_for_status_code",
    "filter_longest_conversation",
    "generate_id",
    "get_default_exception_handler_config",
    "multi_turn_assistant_to_ground_truth",
    "results_from",
    "results_of",
    "verdict_of",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast.evaluation' has no attribute {name!r}")
    from importlib import import_module

    from holdfast.evaluation.extra import needed_by

    with needed_by(f"holdfast.evaluation.{name}"):
        module = import_module(_WHERE[name])
    found: object = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
