"""Status is the state of a rollout or an evaluation, in the form of AIP-193, as in eval-protocol.

The codes are those of google.rpc.Code and four codes above 99. Unknown codes are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Details = list[dict[str, Any]]
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


SHOWN_CLASSES: dict[type, type] = {}
"""The class that `isinstance` sees for an instance of a model, if it differs
(`eval_protocol.class_checks`)."""


class Open(BaseModel):
    """A model that keeps unknown fields, and writes NaN and infinity without changing them."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return SHOWN_CLASSES.get(type(self), type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the instance by `type(self)`, because pickle would reject an instance whose
        `__class__` is another class."""
        return _restored, (type(self), self.__getstate__())


def _restored(kind: type[Open], state: dict[Any, Any]) -> Open:
    made = kind.__new__(kind)
    made.__setstate__(state)
    return made


class TerminationReason(str, Enum):  # noqa: UP042  # its text is its value in old code, too
    """Why a trajectory ended."""

    MAX_STEPS = "max_steps"
    CONTROL_PLANE_SIGNAL = "control_plane_signal"
    USER_STOP = "user_stop"
    SKIPPABLE_ERROR = "skippable_error"
    NON_SKIPPABLE_ERROR = "non_skippable_error"
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"

    @classmethod
    def from_str(cls, value: str) -> "TerminationReason":
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"Invalid termination reason: {value}") from None


class ErrorInfo(Open):
    """One detail of a status."""

    REASON_TERMINATION_REASON: ClassVar[str] = "TERMINATION_REASON"
    REASON_EXTRA_INFO: ClassVar[str] = "EXTRA_INFO"
    DOMAIN: ClassVar[str] = "evalprotocol.io"

    reason: str
    domain: str
    metadata: dict[str, Any] = Field(default_factory=dict)

    def to_aip193_format(self) -> dict[str, Any]:
        return {
            "@type": _ERROR_INFO,
            "reason": self.reason,
            "domain": self.domain,
            "metadata": self.metadata,
        }

    @classmethod
    def termination_reason(cls, reason: TerminationReason | str) -> "ErrorInfo":
        word = reason.value if isinstance(reason, TerminationReason) else reason
        metadata = {"termination_reason": word}
        return cls(reason=cls.REASON_TERMINATION_REASON, domain=cls.DOMAIN, metadata=metadata)

    @classmethod
    def extra_info(cls, metadata: Mapping[str, Any]) -> "ErrorInfo":
        return cls(reason=cls.REASON_EXTRA_INFO, domain=cls.DOMAIN, metadata=dict(metadata))


class StatusCode(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
    FINISHED = 100
    RUNNING = 101
    SCORE_INVALID = 102
    RESPONSE_QUALITY_ERROR = 103


_C = StatusCode


@dataclass(frozen=True)
class _Error:
    """Makes statuses with one code. `Status` has instances of this class, which are called like
    class methods."""

    code: StatusCode

    def __call__(self, error_message: str, details: Details | None = None) -> "Status":
        return Status(code=self.code, message=error_message, details=details or [])


@dataclass(frozen=True)
class _RolloutError:
    """Makes statuses with one code, whose only detail is the extra information."""

    code: StatusCode

    def __call__(self, error_message: str, extra_info: Mapping[str, Any] | None = None) -> "Status":
        return Status(code=self.code, message=error_message, details=_extra(extra_info))


class Status(Open):
    """The state of a rollout, or of its evaluation."""

    Code: ClassVar[type[StatusCode]] = StatusCode

    code: StatusCode | int
    message: str
    details: Details = Field(default_factory=list)

    # --- running, and finished

    @classmethod
    def rollout_running(cls) -> "Status":
        return cls(code=_C.RUNNING, message="Rollout is running")

    @classmethod
    def eval_running(cls) -> "Status":
        return cls(code=_C.RUNNING, message="Evaluation is running")

    @classmethod
    def eval_finished(cls) -> "Status":
        return cls.finished("Evaluation finished")

    @classmethod
    def rollout_finished(
        cls,
        termination_reason: TerminationReason | str | None = None,
        extra_info: Mapping[str, Any] | None = None,
    ) -> "Status":
        details: Details = []
        if termination_reason:
            details.append(ErrorInfo.termination_reason(termination_reason).to_aip193_format())
        return cls.finished("Rollout finished", details + _extra(extra_info))

    @classmethod
    def finished(cls, message: str, details: Details | None = None) -> "Status":
        return cls(code=_C.FINISHED, message=message, details=details or [])

    # --- verdicts about a score or a reply

    @classmethod
    def score_invalid(
        cls, message: str = "Score is invalid", details: Details | None = None
    ) -> "Status":
        return cls(code=_C.SCORE_INVALID, message=message, details=details or [])

    @classmethod
    def response_quality_error(
        cls, message: str = "Response quality check failed", details: Details | None = None
    ) -> "Status":
        return cls(code=_C.RESPONSE_QUALITY_ERROR, message=message, details=details or [])

    # --- errors, with details, or with extra information that becomes one

    error: ClassVar[_Error] = _Error(_C.INTERNAL)
    rollout_error: ClassVar[_RolloutError] = _RolloutError(_C.INTERNAL)
    rollout_aborted_error: ClassVar[_RolloutError] = _RolloutError(_C.ABORTED)
    cancelled_error: ClassVar[_Error] = _Error(_C.CANCELLED)
    rollout_cancelled_error: ClassVar[_RolloutError] = _RolloutError(_C.CANCELLED)
    unknown_error: ClassVar[_Error] = _Error(_C.UNKNOWN)
    rollout_unknown_error: ClassVar[_RolloutError] = _RolloutError(_C.UNKNOWN)
    invalid_argument_error: ClassVar[_Error] = _Error(_C.INVALID_ARGUMENT)
    rollout_invalid_argument_error: ClassVar[_RolloutError] = _RolloutError(_C.INVALID_ARGUMENT)
    deadline_exceeded_error: ClassVar[_Error] = _Error(_C.DEADLINE_EXCEEDED)
    rollout_deadline_exceeded_error: ClassVar[_RolloutError] = _RolloutError(_C.DEADLINE_EXCEEDED)
    not_found_error: ClassVar[_Error] = _Error(_C.NOT_FOUND)
    rollout_not_found_error: ClassVar[_RolloutError] = _RolloutError(_C.NOT_FOUND)
    already_exists_error: ClassVar[_Error] = _Error(_C.ALREADY_EXISTS)
    rollout_already_exists_error: ClassVar[_RolloutError] = _RolloutError(_C.ALREADY_EXISTS)
    permission_denied_error: ClassVar[_Error] = _Error(_C.PERMISSION_DENIED)
    rollout_permission_denied_error: ClassVar[_RolloutError] = _RolloutError(_C.PERMISSION_DENIED)
    resource_exhausted_error: ClassVar[_Error] = _Error(_C.RESOURCE_EXHAUSTED)
    rollout_resource_exhausted_error: ClassVar[_RolloutError] = _RolloutError(_C.RESOURCE_EXHAUSTED)
    failed_precondition_error: ClassVar[_Error] = _Error(_C.FAILED_PRECONDITION)
    rollout_failed_precondition_error: ClassVar[_RolloutError] = _RolloutError(
        _C.FAILED_PRECONDITION
    )
    out_of_range_error: ClassVar[_Error] = _Error(_C.OUT_OF_RANGE)
    rollout_out_of_range_error: ClassVar[_RolloutError] = _RolloutError(_C.OUT_OF_RANGE)
    unimplemented_error: ClassVar[_Error] = _Error(_C.UNIMPLEMENTED)
    rollout_unimplemented_error: ClassVar[_RolloutError] = _RolloutError(_C.UNIMPLEMENTED)
    internal_error: ClassVar[_Error] = _Error(_C.INTERNAL)
    rollout_internal_error: ClassVar[_RolloutError] = _RolloutError(_C.INTERNAL)
    unavailable_error: ClassVar[_Error] = _Error(_C.UNAVAILABLE)
    rollout_unavailable_error: ClassVar[_RolloutError] = _RolloutError(_C.UNAVAILABLE)
    data_loss_error: ClassVar[_Error] = _Error(_C.DATA_LOSS)
    rollout_data_loss_error: ClassVar[_RolloutError] = _RolloutError(_C.DATA_LOSS)
    unauthenticated_error: ClassVar[_Error] = _Error(_C.UNAUTHENTICATED)
    rollout_unauthenticated_error: ClassVar[_RolloutError] = _RolloutError(_C.UNAUTHENTICATED)

    @classmethod
    def aborted(cls, message: str, details: Details | None = None) -> "Status":
        return cls(code=_C.ABORTED, message=message, details=details or [])

    # --- questions

    def is_running(self) -> bool:
        return self.code == _C.RUNNING

    def is_finished(self) -> bool:
        return self.code == _C.FINISHED

    def is_error(self) -> bool:
        """Returns whether the code is one of google.rpc's codes other than OK. Deadlines and lost
        connections have such codes, too."""
        return _C.OK < self.code < _C.FINISHED

    def is_stopped(self) -> bool:
        return self.code == _C.CANCELLED

    def is_score_invalid(self) -> bool:
        return self.code == _C.SCORE_INVALID

    def get_termination_reason(self) -> TerminationReason | None:
        """Returns the termination reason, or None if it is missing or unknown."""
        for detail in self.details:
            metadata = detail.get("metadata") or {}
            if detail.get("reason") == ErrorInfo.REASON_TERMINATION_REASON and metadata:
                try:
                    return TerminationReason(metadata.get("termination_reason"))
                except ValueError:
                    return None
        return None

    def get_extra_info(self) -> dict[str, Any] | None:
        for detail in self.details:
            if detail.get("reason") == ErrorInfo.REASON_EXTRA_INFO:
                metadata: dict[str, Any] = detail.get("metadata") or {}
                return metadata
        return None

    def __hash__(self) -> int:
        return hash((int(self.code), self.message, repr(self.details)))


def _extra(extra_info: Mapping[str, Any] | None) -> Details:
    return [ErrorInfo.extra_info(extra_info).to_aip193_format()] if extra_info else []
