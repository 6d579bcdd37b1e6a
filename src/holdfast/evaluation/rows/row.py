"""EvaluationRow: one row of a data set and what became of it, under eval-protocol's names.

Every model keeps fields that it does not know: JSON in and out loses nothing. A row's id is None
until a data set gives it one; ids that are derived from content alone would make one row of two
equal ones.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from holdfast.evaluation.rows.names import generate_id
from holdfast.evaluation.rows.result import EvaluateResult, MetricResult, Readable, StepOutput
from holdfast.evaluation.rows.status import (
    Details,
    ErrorInfo,
    Open,
    Status,
    StatusCode,
    TerminationReason,
)

__all__ = [
    "ChatCompletionContentPartImageParam",
    "ChatCompletionContentPartParam",
    "ChatCompletionContentPartTextParam",
    "ChatCompletionMessageToolCall",
    "CompletionParams",
    "CompletionUsage",
    "CostMetrics",
    "Details",
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
    "StatusCode",
    "StepOutput",
    "TerminationReason",
    "generate_id",
]

JSONType = dict[str, Any] | list[Any] | str | int | float | bool | None
CompletionParams = dict[str, Any]
"""What a completion is asked with: model, temperature, max_tokens, …"""


class ChatCompletionContentPartTextParam(Readable):
    text: str
    type: Literal["text"] = "text"


class ChatCompletionContentPartImageParam(Readable):
    type: Literal["image_url"] = "image_url"
    image_url: dict[str, Any]


ChatCompletionContentPartParam = (
    ChatCompletionContentPartTextParam | ChatCompletionContentPartImageParam | dict[str, Any]
)


class FunctionCall(Open):
    name: str
    arguments: str


class ChatCompletionMessageToolCall(Open):
    id: str
    function: FunctionCall
    type: str = "function"


class Message(Open):
    """One message of a conversation."""

    role: str
    content: str | list[ChatCompletionContentPartParam] | None = ""
    reasoning_content: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ChatCompletionMessageToolCall] | None = None
    function_call: FunctionCall | None = None
    control_plane_step: dict[str, Any] | None = None
    """What an environment said about the step that the message answers."""
    weight: int | None = None
    logprobs: Any = None

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _with_ids(cls, calls: object) -> object:
        """Calls that were written without an id are told apart by their place."""
        if not isinstance(calls, list):
            return calls
        return [
            {**call, "id": f"call_{index}"}
            if isinstance(call, Mapping) and not call.get("id")
            else call
            for index, call in enumerate(calls)
        ]

    def dump_for_chat_completion_request(self) -> dict[str, Any]:
        """What chat APIs take."""
        kept = {"role", "content", "name", "tool_call_id", "tool_calls", "function_call"}
        return self.model_dump(exclude_none=True, include=kept)

    dump_mdoel_for_chat_completion_request = dump_for_chat_completion_request
    """The name that eval-protocol has for it."""

    @property
    def text(self) -> str:
        """The content as one string, whatever its shape."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or ())


class InputMetadata(Open):
    """What a row was made from."""

    row_id: str | None = None
    completion_params: CompletionParams = Field(default_factory=dict)
    dataset_info: dict[str, Any] | None = None
    session_data: dict[str, Any] | None = None


class EvaluationThreshold(Open):
    """What a score has to reach, and how sure one has to be of it."""

    success: float
    standard_error: float | None = Field(default=None, ge=0.0, le=1.0)
    """As eval-protocol has it: with the tasks taken as they are."""
    clustered_standard_error: float | None = Field(default=None, ge=0.0)
    """As reports show it: clustered by task."""


class EvaluationThresholdDict(TypedDict):
    success: float
    standard_error: float | None


class EvalMetadata(Open):
    """Which evaluation a row was part of."""

    name: str
    description: str | None = None
    version: str = "0.0.0"
    status: Status | None = None
    num_runs: int
    aggregation_method: str
    passed_threshold: EvaluationThreshold | None = None
    passed: bool | None = None


class CostMetrics(Open):
    """In dollars."""

    input_cost: float | None = None
    output_cost: float | None = None
    total_cost_dollar: float | None = None


class CompletionUsage(Open):
    """How many tokens a row took, as an engine counts them."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int


class ExecutionMetadata(Open):
    """How a row's rollout went."""

    invocation_id: str | None = Field(default_factory=generate_id)
    experiment_id: str | None = Field(default_factory=generate_id)
    rollout_id: str | None = Field(default_factory=generate_id)
    run_id: str | None = None
    usage: CompletionUsage | None = None
    cost_metrics: CostMetrics | None = None
    duration_seconds: float | None = None
    """Of old: see the next two."""
    rollout_duration_seconds: float | None = None
    eval_duration_seconds: float | None = None
    experiment_duration_seconds: float | None = None
    extra: dict[str, Any] | None = None
    """Token data, rewards of steps, and whatever else a rollout leaves behind."""
    finish_reason: str | None = None
    tool_call_count: int | None = None
    raw_output: dict[str, Any] | None = None
    _extra_of: Callable[[], dict[str, Any]] | None = PrivateAttr(default=None)

    def make_extra_later(self, make: Callable[[], dict[str, Any]]) -> None:
        """`extra` is made when somebody asks for it, or never: it may be large."""
        self.__dict__.pop("extra", None)
        self.__pydantic_fields_set__.add("extra")
        self._extra_of = make

    def __getattr__(self, name: str) -> Any:
        if name == "extra" and self._extra_of is not None:
            self.__dict__["extra"] = found = self._extra_of()
            self._extra_of = None
            return found
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic hides it from checkers

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExecutionMetadata):
            _ = self.extra, other.extra
        return super().__eq__(other)

    @model_serializer(mode="wrap")
    def _whole(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        _ = self.extra
        found: dict[str, Any] = write(self)
        return found


class EvaluationRow(Open):
    """A conversation with what it is measured against and how it was judged."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    input_metadata: InputMetadata = Field(default_factory=InputMetadata)
    rollout_status: Status = Field(default_factory=Status.rollout_running)
    ground_truth: Any = None
    evaluation_result: EvaluateResult | None = None
    execution_metadata: ExecutionMetadata = Field(default_factory=ExecutionMetadata)
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    eval_metadata: EvalMetadata | None = None
    pid: int | None = None

    def __await__(self) -> "Generator[None, None, EvaluationRow]":
        """Itself, at once: `await test(row)` works for a function that is not asynchronous."""
        return self
        yield  # It never waits.

    # --- the conversation

    def get_conversation_length(self) -> int:
        return len(self.messages)

    def get_system_message(self) -> Message:
        """An empty one where there is none."""
        found = self._of("system")
        return found[0] if found else Message(role="system", content="")

    def get_assistant_messages(self) -> list[Message]:
        return self._of("assistant")

    def last_assistant_message(self) -> Message | None:
        found = self._of("assistant")
        return found[-1] if found else None

    def get_first_user_message(self) -> Message | None:
        found = self._of("user")
        return found[0] if found else None

    def get_user_messages(self) -> list[Message]:
        return self._of("user")

    def _of(self, role: str) -> list[Message]:
        return [message for message in self.messages if message.role == role]

    def get_input_metadata(self, key: str, default: Any = None) -> Any:
        return getattr(self.input_metadata, key, default)

    # --- what an environment said, step by step

    def get_steps(self) -> int:
        return len(self._plane_steps())

    def get_total_reward(self) -> float:
        """0 where no environment said anything."""
        return sum(_number(step.get("reward")) for step in self._plane_steps())

    def get_terminated(self) -> bool:
        return any(step.get("terminated") for step in self._plane_steps())

    def get_termination_reason(self) -> str:
        reasons = [step.get("termination_reason") for step in self._plane_steps()]
        return str(next((one for one in reversed(reasons) if one), "unknown"))

    def _plane_steps(self) -> list[dict[str, Any]]:
        return [one.control_plane_step for one in self.messages if one.control_plane_step]

    def is_trajectory_evaluation(self) -> bool:
        """Whether its steps were judged one by one."""
        return bool(self.evaluation_result and self.evaluation_result.step_outputs)

    # --- in and out

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON, beside what it may be filtered by."""
        result = self.evaluation_result
        return {
            "data_json": self.model_dump_json(),
            "row_id": self.input_metadata.row_id,
            "score": result.score if result else None,
            "message_count": len(self.messages),
            "has_tools": bool(self.tools),
            "created_at": self.created_at.isoformat(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EvaluationRow":
        if not data.get("data_json"):
            raise ValueError("Missing 'data_json' field in dictionary")
        try:
            return cls.model_validate_json(data["data_json"])
        except ValidationError as error:
            raise ValueError(f"Failed to deserialize EvaluationRow: {error}") from error

    def __hash__(self) -> int:
        """The same in every process: of what the row says, not of when and where it was made."""
        said = self.model_dump(
            mode="json",
            exclude_none=True,
            exclude_defaults=True,
            exclude={"created_at", "execution_metadata", "pid"},
        )
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big")


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
