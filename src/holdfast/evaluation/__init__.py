"""Evaluations as pytest tests. They run anywhere, can be killed at any moment, and are resumed by
the same command.

The names below are the whole public API. They are imported when they are first used, so that a test
session without evaluations pays almost nothing. If eval-protocol has a name for the same thing,
that name is used here too. It does not matter which module of eval-protocol defines the name.

- `decorator`: `@evaluation_test`: an evaluation, written as a function that judges a row.
- `definition`: The arguments of `@evaluation_test` and pytest's flags, checked.
- `data`: Rows from files, lists and functions.
- `rows`: Rows in the form of eval-protocol, and their conversion to and from records.
- `running`: Runs one evaluation, from its definition to its results.
- `eval_protocol`: Optional: processors, loaders and loggers of files written for eval-protocol.
- `stats`: Computes the numbers of a run: estimates, intervals, verdicts, comparisons.
- `report`: A run as one HTML file that needs no server, no network and no other file.
- `importers`: Results of other libraries.
- `plugin`: The pytest plugin: flags, one item for each experiment, and the summary at the end of
  the session.
- `pytest`: `holdfast.evaluation` under the name of eval-protocol's module for its decorator and
  processors.
- `models`: The models under the name of eval-protocol's module for models.
- `exceptions`: One error for each code of a status, under eval-protocol's names.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.engine.scoring.scorer import Score as Score
    from holdfast.evaluation.data.dataset import Dataset as Dataset
    from holdfast.evaluation.data.dataset import default_dataset_adapter as default_dataset_adapter
    from holdfast.evaluation.decorator import evaluation_test as evaluation_test
    from holdfast.evaluation.definition.options import Options as Options
    from holdfast.evaluation.definition.parameters import EPParameters as EPParameters
    from holdfast.evaluation.eval_protocol.adapters import (
        assistant_to_ground_truth as assistant_to_ground_truth,
    )
    from holdfast.evaluation.eval_protocol.adapters import (
        create_rows_from_indices as create_rows_from_indices,
    )
    from holdfast.evaluation.eval_protocol.adapters import (
        filter_longest_conversation as filter_longest_conversation,
    )
    from holdfast.evaluation.eval_protocol.adapters import (
        multi_turn_assistant_to_ground_truth as multi_turn_assistant_to_ground_truth,
    )
    from holdfast.evaluation.eval_protocol.agent import (
        AgentRolloutProcessor as AgentRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.basic import NoOpRolloutProcessor as NoOpRolloutProcessor
    from holdfast.evaluation.eval_protocol.basic import (
        SingleTurnRolloutProcessor as SingleTurnRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.dataset_logger import DatasetLogger as DatasetLogger
    from holdfast.evaluation.eval_protocol.gym.processor import (
        MCPGymRolloutProcessor as MCPGymRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.langgraph import (
        LangGraphRolloutProcessor as LangGraphRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.loaders import DataLoaderResult as DataLoaderResult
    from holdfast.evaluation.eval_protocol.loaders import DynamicDataLoader as DynamicDataLoader
    from holdfast.evaluation.eval_protocol.loaders import (
        EvaluationDataLoader as EvaluationDataLoader,
    )
    from holdfast.evaluation.eval_protocol.loaders import InlineDataLoader as InlineDataLoader
    from holdfast.evaluation.eval_protocol.openenv import (
        OpenEnvRolloutProcessor as OpenEnvRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.pydantic_ai import (
        PydanticAgentRolloutProcessor as PydanticAgentRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.remote import (
        RemoteRolloutProcessor as RemoteRolloutProcessor,
    )
    from holdfast.evaluation.eval_protocol.remote_messages import InitRequest as InitRequest
    from holdfast.evaluation.eval_protocol.remote_messages import RolloutMetadata as RolloutMetadata
    from holdfast.evaluation.eval_protocol.remote_messages import StatusResponse as StatusResponse
    from holdfast.evaluation.eval_protocol.retries import BackoffConfig as BackoffConfig
    from holdfast.evaluation.eval_protocol.retries import (
        ExceptionHandlerConfig as ExceptionHandlerConfig,
    )
    from holdfast.evaluation.eval_protocol.retries import (
        get_default_exception_handler_config as get_default_exception_handler_config,
    )
    from holdfast.evaluation.eval_protocol.row_processor import (
        NoOpRolloutResultPostProcessor as NoOpRolloutResultPostProcessor,
    )
    from holdfast.evaluation.eval_protocol.row_processor import RolloutProcessor as RolloutProcessor
    from holdfast.evaluation.eval_protocol.row_processor import (
        RolloutProcessorConfig as RolloutProcessorConfig,
    )
    from holdfast.evaluation.eval_protocol.row_processor import (
        RolloutResultPostProcessor as RolloutResultPostProcessor,
    )
    from holdfast.evaluation.exceptions import EvalProtocolError as EvalProtocolError
    from holdfast.evaluation.exceptions import ResponseQualityError as ResponseQualityError
    from holdfast.evaluation.exceptions import (
        exception_for_status_code as exception_for_status_code,
    )
    from holdfast.evaluation.importers.load import results_from as results_from
    from holdfast.evaluation.rows.names import generate_id as generate_id
    from holdfast.evaluation.rows.result import EvaluateResult as EvaluateResult
    from holdfast.evaluation.rows.result import MetricResult as MetricResult
    from holdfast.evaluation.rows.result import StepOutput as StepOutput
    from holdfast.evaluation.rows.row import (
        ChatCompletionContentPartImageParam as ChatCompletionContentPartImageParam,
    )
    from holdfast.evaluation.rows.row import (
        ChatCompletionContentPartParam as ChatCompletionContentPartParam,
    )
    from holdfast.evaluation.rows.row import (
        ChatCompletionContentPartTextParam as ChatCompletionContentPartTextParam,
    )
    from holdfast.evaluation.rows.row import CompletionParams as CompletionParams
    from holdfast.evaluation.rows.row import CompletionUsage as CompletionUsage
    from holdfast.evaluation.rows.row import CostMetrics as CostMetrics
    from holdfast.evaluation.rows.row import EvalMetadata as EvalMetadata
    from holdfast.evaluation.rows.row import EvaluationRow as EvaluationRow
    from holdfast.evaluation.rows.row import EvaluationThreshold as EvaluationThreshold
    from holdfast.evaluation.rows.row import ExecutionMetadata as ExecutionMetadata
    from holdfast.evaluation.rows.row import InputMetadata as InputMetadata
    from holdfast.evaluation.rows.row import Message as Message
    from holdfast.evaluation.rows.status import ErrorInfo as ErrorInfo
    from holdfast.evaluation.rows.status import Status as Status
    from holdfast.evaluation.rows.status import TerminationReason as TerminationReason
    from holdfast.evaluation.running.logged_rows import JournalDatasetLogger as JournalDatasetLogger
    from holdfast.evaluation.running.logged_rows import default_logger as default_logger
    from holdfast.evaluation.stats.comparison import compare as compare
    from holdfast.evaluation.stats.outcome import EvaluationFailed as EvaluationFailed
    from holdfast.evaluation.stats.outcome import Outcome as Outcome
    from holdfast.evaluation.stats.results import Results as Results
    from holdfast.evaluation.stats.results import results_of as results_of
    from holdfast.evaluation.stats.verdict import verdict_of as verdict_of
    from holdfast.gateway.agents.subprocess import (
        BlackBoxRolloutProcessor as BlackBoxRolloutProcessor,
    )
    from holdfast.rollout.processors.agent import (
        EnvironmentRolloutProcessor as EnvironmentRolloutProcessor,
    )

_MODULES = {
    "engine.scoring.scorer": "Score",
    "evaluation.data.dataset": "Dataset default_dataset_adapter",
    "evaluation.eval_protocol.loaders": (
        "DataLoaderResult DynamicDataLoader EvaluationDataLoader InlineDataLoader"
    ),
    "evaluation.eval_protocol.dataset_logger": "DatasetLogger",
    "evaluation.running.logged_rows": "JournalDatasetLogger default_logger",
    "evaluation.decorator": "evaluation_test",
    "evaluation.definition.options": "Options",
    "evaluation.definition.parameters": "EPParameters",
    "evaluation.eval_protocol.retries": (
        "BackoffConfig ExceptionHandlerConfig get_default_exception_handler_config"
    ),
    "evaluation.exceptions": "EvalProtocolError ResponseQualityError exception_for_status_code",
    "evaluation.importers.load": "results_from",
    "evaluation.eval_protocol.agent": "AgentRolloutProcessor",
    "evaluation.eval_protocol.basic": "NoOpRolloutProcessor SingleTurnRolloutProcessor",
    "evaluation.eval_protocol.gym.processor": "MCPGymRolloutProcessor",
    "evaluation.eval_protocol.langgraph": "LangGraphRolloutProcessor",
    "evaluation.eval_protocol.openenv": "OpenEnvRolloutProcessor",
    "evaluation.eval_protocol.pydantic_ai": "PydanticAgentRolloutProcessor",
    "evaluation.eval_protocol.remote": "RemoteRolloutProcessor",
    "evaluation.eval_protocol.remote_messages": "InitRequest RolloutMetadata StatusResponse",
    "evaluation.eval_protocol.row_processor": (
        "NoOpRolloutResultPostProcessor RolloutProcessor RolloutProcessorConfig "
        "RolloutResultPostProcessor"
    ),
    "evaluation.eval_protocol.adapters": (
        "assistant_to_ground_truth create_rows_from_indices filter_longest_conversation "
        "multi_turn_assistant_to_ground_truth"
    ),
    "evaluation.rows.names": "generate_id",
    "evaluation.rows.result": "EvaluateResult MetricResult StepOutput",
    "evaluation.rows.row": (
        "ChatCompletionContentPartImageParam ChatCompletionContentPartParam "
        "ChatCompletionContentPartTextParam CompletionParams CompletionUsage CostMetrics "
        "EvalMetadata EvaluationRow EvaluationThreshold ExecutionMetadata InputMetadata Message"
    ),
    "evaluation.rows.status": "ErrorInfo Status TerminationReason",
    "evaluation.stats.comparison": "compare",
    "evaluation.stats.outcome": "EvaluationFailed Outcome",
    "evaluation.stats.results": "Results results_of",
    "evaluation.stats.verdict": "verdict_of",
    "gateway.agents.subprocess": "BlackBoxRolloutProcessor",
    "rollout.processors.agent": "EnvironmentRolloutProcessor",
}
_load, __all__ = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> object:
    from holdfast.extras import needed_by

    with needed_by(f"holdfast.evaluation.{name}", extra="evaluation"):
        return _load(name)


def __dir__() -> list[str]:
    return __all__
