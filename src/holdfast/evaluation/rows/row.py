"""EvaluationRow is one row of a data set with its results, under eval-protocol's names.

Every model keeps unknown fields, so JSON is read and written without loss. A row's id is None until
a data set sets it, because an id made only from the content would make two equal rows one.
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
from holdfast.evaluation.rows.result import EvaluateResult, Readable
from holdfast.evaluation.rows.status import Open, Status

JSONType = dict[str, Any] | list[Any] | str | int | float | bool | None
CompletionParams = dict[str, Any]
"""The parameters of a completion: model, temperature, max_tokens, …"""


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
    """The result of the environment's step that this message answers."""
    weight: int | None = None
    logprobs: Any = None

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _with_ids(cls, calls: object) -> object:
        """Gives each call that has no id an id made from its position."""
        if not isinstance(calls, list):
            return calls
        return [
            {**call, "id": f"call_{index}"}
            if isinstance(call, Mapping) and not call.get("id")
            else call
            for index, call in enumerate(calls)
        ]

    def dump_for_chat_completion_request(self) -> dict[str, Any]:
        """Returns the message in the form of chat APIs."""
        kept = {"role", "content", "name", "tool_call_id", "tool_calls", "function_call"}
        return self.model_dump(exclude_none=True, include=kept)

    dump_mdoel_for_chat_completion_request = dump_for_chat_completion_request
    """An alias with eval-protocol's misspelled name."""

    @property
    def text(self) -> str:
        """The content as one string. The texts of several parts are joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or ())


class InputMetadata(Open):
    """The source of a row."""

    row_id: str | None = None
    completion_params: CompletionParams = Field(default_factory=dict)
    dataset_info: dict[str, Any] | None = None
    session_data: dict[str, Any] | None = None


class EvaluationThreshold(Open):
    """The score that passes, and the largest standard error."""

    success: float
    standard_error: float | None = Field(default=None, ge=0.0, le=1.0)
    """The bound on eval-protocol's standard error, for which the tasks are a fixed set."""
    clustered_standard_error: float | None = Field(default=None, ge=0.0)
    """The bound on the standard error in reports, which is clustered by task."""


class EvaluationThresholdDict(TypedDict):
    success: float
    standard_error: float | None


class EvalMetadata(Open):
    """The evaluation that a row was part of."""

    name: str
    description: str | None = None
    version: str = "0.0.0"
    status: Status | None = None
    num_runs: int
    aggregation_method: str
    passed_threshold: EvaluationThreshold | None = None
    passed: bool | None = None


class CostMetrics(Open):
    """The cost of a row, in dollars."""

    input_cost: float | None = None
    output_cost: float | None = None
    total_cost_dollar: float | None = None


class CompletionUsage(Open):
    """The tokens of a row, as an engine counts them."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int


class ExecutionMetadata(Open):
    """Facts about a row's rollout: ids, tokens, costs and durations."""

    invocation_id: str | None = Field(default_factory=generate_id)
    experiment_id: str | None = Field(default_factory=generate_id)
    rollout_id: str | None = Field(default_factory=generate_id)
    run_id: str | None = None
    usage: CompletionUsage | None = None
    cost_metrics: CostMetrics | None = None
    duration_seconds: float | None = None
    """The older name of the next two fields."""
    rollout_duration_seconds: float | None = None
    eval_duration_seconds: float | None = None
    experiment_duration_seconds: float | None = None
    extra: dict[str, Any] | None = None
    """Token data, rewards of steps, and other results of a rollout."""
    finish_reason: str | None = None
    tool_call_count: int | None = None
    raw_output: dict[str, Any] | None = None
    _make_extra: Callable[[], dict[str, Any]] | None = PrivateAttr(default=None)

    def make_extra_later(self, make: Callable[[], dict[str, Any]]) -> None:
        """Sets a function that makes `extra` when it is first read, because `extra` may be
        large."""
        self.__dict__.pop("extra", None)
        self.__pydantic_fields_set__.add("extra")
        self._make_extra = make

    def __getattr__(self, name: str) -> Any:
        if name == "extra" and self._make_extra is not None:
            self.__dict__["extra"] = extra = self._make_extra()
            self._make_extra = None
            return extra
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic hides it from checkers

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExecutionMetadata):
            _ = self.extra, other.extra
        return super().__eq__(other)

    @model_serializer(mode="wrap")
    def _serialize(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        _ = self.extra
        serialized: dict[str, Any] = write(self)
        return serialized


class EvaluationRow(Open):
    """A conversation with its ground truth, its status and its score."""

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
        """Returns the row itself, so that `await test(row)` also works for a function that is not
        async."""
        return self
        yield  # It never waits.

    # --- the conversation

    def get_conversation_length(self) -> int:
        return len(self.messages)

    def get_system_message(self) -> Message:
        """Returns the first system message, or an empty one if there is none."""
        messages = self._messages_of("system")
        return messages[0] if messages else Message(role="system", content="")

    def get_assistant_messages(self) -> list[Message]:
        return self._messages_of("assistant")

    def last_assistant_message(self) -> Message | None:
        messages = self._messages_of("assistant")
        return messages[-1] if messages else None

    def get_first_user_message(self) -> Message | None:
        messages = self._messages_of("user")
        return messages[0] if messages else None

    def get_user_messages(self) -> list[Message]:
        return self._messages_of("user")

    def _messages_of(self, role: str) -> list[Message]:
        return [message for message in self.messages if message.role == role]

    def get_input_metadata(self, key: str, default: Any = None) -> Any:
        return getattr(self.input_metadata, key, default)

    # --- an environment's results, step by step

    def get_steps(self) -> int:
        return len(self._control_plane_steps())

    def get_total_reward(self) -> float:
        """Returns the sum of the steps' rewards, or 0 without an environment."""
        return sum(_number(step.get("reward")) for step in self._control_plane_steps())

    def get_terminated(self) -> bool:
        return any(step.get("terminated") for step in self._control_plane_steps())

    def get_termination_reason(self) -> str:
        reasons = [step.get("termination_reason") for step in self._control_plane_steps()]
        return str(next((reason for reason in reversed(reasons) if reason), "unknown"))

    def _control_plane_steps(self) -> list[dict[str, Any]]:
        return [
            message.control_plane_step for message in self.messages if message.control_plane_step
        ]

    def is_trajectory_evaluation(self) -> bool:
        """Returns whether the steps have their own scores."""
        return bool(self.evaluation_result and self.evaluation_result.step_outputs)

    # --- in and out

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as JSON, with columns to filter by."""
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
        """Returns a hash of the row's content, without times and process ids. It is the same in
        every process."""
        fields = self.model_dump(
            mode="json",
            exclude_none=True,
            exclude_defaults=True,
            exclude={"created_at", "execution_metadata", "pid"},
        )
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big")


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
