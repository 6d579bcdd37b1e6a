"""Errors for the codes of a status, under eval-protocol's names.

A processor may raise them. Errors that eval-protocol retries by default are retried. None of them
counts as an outcome of the policy.
"""

from typing import ClassVar

from holdfast.evaluation.rows.status import Status, StatusCode
from holdfast.records.errors import Cause, HoldfastError


class EvalProtocolError(HoldfastError):
    """The base class of these errors. `status_code` is the code of the status with the same
    meaning."""

    status_code: ClassVar[int]
    retryable = False


class _RetryableError(EvalProtocolError):
    cause = Cause.INFRASTRUCTURE
    retryable = True


class CancelledError(EvalProtocolError):
    status_code = 1


class UnknownError(_RetryableError):
    status_code = 2


class InvalidArgumentError(EvalProtocolError):
    status_code = 3


class DeadlineExceededError(_RetryableError):
    status_code = 4


class NotFoundError(_RetryableError):
    status_code = 5


class AlreadyExistsError(EvalProtocolError):
    status_code = 6


class PermissionDeniedError(_RetryableError):
    status_code = 7


class ResourceExhaustedError(_RetryableError):
    status_code = 8


class FailedPreconditionError(EvalProtocolError):
    status_code = 9


class AbortedError(EvalProtocolError):
    status_code = 10


class OutOfRangeError(EvalProtocolError):
    status_code = 11


class UnimplementedError(EvalProtocolError):
    status_code = 12


class InternalError(EvalProtocolError):
    status_code = 13


class UnavailableError(_RetryableError):
    status_code = 14


class DataLossError(EvalProtocolError):
    status_code = 15


class UnauthenticatedError(_RetryableError):
    status_code = 16


class RolloutFinishedError(EvalProtocolError):
    status_code = 100


class RolloutRunningError(EvalProtocolError):
    status_code = 101


class ScoreInvalidError(EvalProtocolError):
    status_code = 102


class ResponseQualityError(_RetryableError):
    """Raised when a reply is not good enough to be scored. The reply is sampled again."""

    status_code = 103


_NO_ERRORS = frozenset({0, 100, 101, 102})
STATUS_CODE_TO_EXCEPTION: dict[int, type[EvalProtocolError] | None] = {
    code.value: None for code in StatusCode if code in _NO_ERRORS
} | {
    error.status_code: error
    for error in (
        *(CancelledError, UnknownError, InvalidArgumentError, DeadlineExceededError),
        *(NotFoundError, AlreadyExistsError, PermissionDeniedError, ResourceExhaustedError),
        *(FailedPreconditionError, AbortedError, OutOfRangeError, UnimplementedError),
        *(InternalError, UnavailableError, DataLossError, UnauthenticatedError),
        ResponseQualityError,
    )
}


def exception_for_status_code(code: int, message: str = "") -> EvalProtocolError | None:
    """Returns the error for a status code, or None if the code is unknown or not an error."""
    kind = STATUS_CODE_TO_EXCEPTION.get(int(code))
    if kind is None:
        return None
    return kind(message) if message else kind()


def exception_for_status(status: Status) -> EvalProtocolError | None:
    return exception_for_status_code(int(status.code), status.message)
