"""Evaluations as pytest tests: run anywhere, killed at any moment, resumed by the same command.

The names below are the whole public API. They are imported when first used, so that a test session
without evaluations pays almost nothing. Where eval-protocol has a name for the same thing, it is
that name, whichever of its modules has it.

- `decorator`: `@evaluation_test`: an evaluation, written as a function that judges a row.
- `definition`: What `@evaluation_test` was told, checked.
- `data`: Rows from files, lists and functions.
- `rows`: Rows in the form of eval-protocol, and their conversion to and from records.
- `running`: One evaluation from its definition to its results.
- `processors`: Processors under eval-protocol's names.
- `stats`: Numbers of a run: estimates, intervals, verdicts, comparisons.
- `report`: A run as one HTML file that needs no server, no network and no other file.
- `importers`: Results of other libraries.
- `plugin`: The pytest plugin: flags, one item for each experiment, and what the session tells at
  its end.
- `pytest`: `holdfast.evaluation` under the name of eval-protocol's module for its decorator and
  processors.
- `models`: The models under the name of eval-protocol's module for them.
- `exceptions`: Errors by the codes of a status, under eval-protocol's names.
- `dataset_logger`: DatasetLogger: eval-protocol's store of rows; the default one is the journal.
- `extra`: The extra `evaluation`: pydantic, for rows and results.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.scoring.scorer import Score
    from holdfast.evaluation.data.dataset import Dataset, default_dataset_adapter
    from holdfast.evaluation.data.loaders import (
        DataLoaderResult,
        DynamicDataLoader,
        EvaluationDataLoader,
        InlineDataLoader,
    )
    from holdfast.evaluation.dataset_logger import (
        DatasetLogger,
        JournalDatasetLogger,
        default_logger,
    )
    from holdfast.evaluation.decorator import evaluation_test
    from holdfast.evaluation.definition.options import Options
    from holdfast.evaluation.definition.parameters import EPParameters
    from holdfast.evaluation.definition.retries import (
        BackoffConfig,
        ExceptionHandlerConfig,
        get_default_exception_handler_config,
    )
    from holdfast.evaluation.exceptions import (
        EvalProtocolError,
        ResponseQualityError,
        exception_for_status_code,
    )
    from holdfast.evaluation.importers.load import results_from
    from holdfast.evaluation.processors.agent import AgentRolloutProcessor
    from holdfast.evaluation.processors.basic import (
        NoOpRolloutProcessor,
        SingleTurnRolloutProcessor,
    )
    from holdfast.evaluation.processors.gym.processor import (
        MCPGymRolloutProcessor,
    )
    from holdfast.evaluation.processors.langgraph import (
        LangGraphRolloutProcessor,
    )
    from holdfast.evaluation.processors.openenv import (
        OpenEnvRolloutProcessor,
    )
    from holdfast.evaluation.processors.pydantic_ai import (
        PydanticAgentRolloutProcessor,
    )
    from holdfast.evaluation.processors.remote import (
        RemoteRolloutProcessor,
    )
    from holdfast.evaluation.processors.remote_messages import (
        InitRequest,
        RolloutMetadata,
        StatusResponse,
    )
    from holdfast.evaluation.processors.row_processor import (
        NoOpRolloutResultPostProcessor,
        RolloutProcessor,
        RolloutProcessorConfig,
        RolloutResultPostProcessor,
    )
    from holdfast.evaluation.rows.adapters import (
        assistant_to_ground_truth,
        create_rows_from_indices,
        filter_longest_conversation,
        multi_turn_assistant_to_ground_truth,
    )
    from holdfast.evaluation.rows.names import generate_id
    from holdfast.evaluation.rows.result import EvaluateResult, MetricResult, StepOutput
    from holdfast.evaluation.rows.row import (
        ChatCompletionContentPartImageParam,
        ChatCompletionContentPartParam,
        ChatCompletionContentPartTextParam,
        CompletionParams,
        CompletionUsage,
        CostMetrics,
        EvalMetadata,
        EvaluationRow,
        EvaluationThreshold,
        ExecutionMetadata,
        InputMetadata,
        Message,
    )
    from holdfast.evaluation.rows.status import ErrorInfo, Status, TerminationReason
    from holdfast.evaluation.stats.comparison import compare
    from holdfast.evaluation.stats.outcome import EvaluationFailed, Outcome
    from holdfast.evaluation.stats.results import Results, results_of
    from holdfast.evaluation.stats.verdict import verdict_of
    from holdfast.gateway.agents.subprocess import (
        BlackBoxRolloutProcessor,
    )
    from holdfast.rollout.processors.agent import (
        EnvironmentRolloutProcessor,
    )

_MODULES = {
    "holdfast.engine.scoring.scorer": "Score",
    "holdfast.evaluation.data.dataset": "Dataset default_dataset_adapter",
    "holdfast.evaluation.data.loaders": (
        "DataLoaderResult DynamicDataLoader EvaluationDataLoader InlineDataLoader"
    ),
    "holdfast.evaluation.dataset_logger": "DatasetLogger JournalDatasetLogger default_logger",
    "holdfast.evaluation.decorator": "evaluation_test",
    "holdfast.evaluation.definition.options": "Options",
    "holdfast.evaluation.definition.parameters": "EPParameters",
    "holdfast.evaluation.definition.retries": (
        "BackoffConfig ExceptionHandlerConfig get_default_exception_handler_config"
    ),
    "holdfast.evaluation.exceptions": (
        "EvalProtocolError ResponseQualityError exception_for_status_code"
    ),
    "holdfast.evaluation.importers.load": "results_from",
    "holdfast.evaluation.processors.agent": "AgentRolloutProcessor",
    "holdfast.evaluation.processors.basic": "NoOpRolloutProcessor SingleTurnRolloutProcessor",
    "holdfast.evaluation.processors.gym.processor": "MCPGymRolloutProcessor",
    "holdfast.evaluation.processors.langgraph": "LangGraphRolloutProcessor",
    "holdfast.evaluation.processors.openenv": "OpenEnvRolloutProcessor",
    "holdfast.evaluation.processors.pydantic_ai": "PydanticAgentRolloutProcessor",
    "holdfast.evaluation.processors.remote": "RemoteRolloutProcessor",
    "holdfast.evaluation.processors.remote_messages": "InitRequest RolloutMetadata StatusResponse",
    "holdfast.evaluation.processors.row_processor": (
        "NoOpRolloutResultPostProcessor RolloutProcessor RolloutProcessorConfig "
        "RolloutResultPostProcessor"
    ),
    "holdfast.evaluation.rows.adapters": (
        "assistant_to_ground_truth create_rows_from_indices filter_longest_conversation "
        "multi_turn_assistant_to_ground_truth"
    ),
    "holdfast.evaluation.rows.names": "generate_id",
    "holdfast.evaluation.rows.result": "EvaluateResult MetricResult StepOutput",
    "holdfast.evaluation.rows.row": (
        "ChatCompletionContentPartImageParam ChatCompletionContentPartParam "
        "ChatCompletionContentPartTextParam CompletionParams CompletionUsage CostMetrics "
        "EvalMetadata EvaluationRow EvaluationThreshold ExecutionMetadata InputMetadata Message"
    ),
    "holdfast.evaluation.rows.status": "ErrorInfo Status TerminationReason",
    "holdfast.evaluation.stats.comparison": "compare",
    "holdfast.evaluation.stats.outcome": "EvaluationFailed Outcome",
    "holdfast.evaluation.stats.results": "Results results_of",
    "holdfast.evaluation.stats.verdict": "verdict_of",
    "holdfast.gateway.agents.subprocess": "BlackBoxRolloutProcessor",
    "holdfast.rollout.processors.agent": "EnvironmentRolloutProcessor",
}
"""The names that each module has."""
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}
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
