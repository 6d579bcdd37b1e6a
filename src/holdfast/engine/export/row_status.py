"""Describes how a trajectory ended, with the statuses and reasons that rows use.

A failure becomes a status with its root error, never a score (I5).
"""

from collections.abc import Mapping

from holdfast.engine.export.row_tokens import Fields
from holdfast.records.samples.summary import last_failure
from holdfast.records.trajectory import Status, Truncation
from holdfast.records.view import TrajectoryView

FINISHED = 100
INTERNAL = 13
_TERMINATIONS = {
    Truncation.MAX_TOKENS.value: "length",
    Truncation.CONTEXT_OVERFLOW.value: "length",
    "max_turns": "max_steps",
}
"""eval-protocol's words for Holdfast's reasons. Other reasons are passed on unchanged."""


def termination(view: TrajectoryView) -> str:
    """Returns why a truncated trajectory ended."""
    return _TERMINATIONS.get(view.reason, view.reason)


def status_fields(view: TrajectoryView) -> Fields:
    if view.status is Status.COMPLETED:
        return _finished([])
    if view.status is Status.TRUNCATED:
        return _finished(
            [
                _detail("TERMINATION_REASON", {"termination_reason": termination(view)}),
                _detail("EXTRA_INFO", {"status": view.status.name, "reason": view.reason}),
            ]
        )
    failure = last_failure(view.history)
    if failure is None:
        return internal(view.reason or view.status.name, {})
    info = {"cause": failure.cause.value, "type": failure.type, "phase": failure.phase}
    return internal(failure.root, info)


def internal(message: str, info: Mapping[str, object]) -> Fields:
    details = [_detail("EXTRA_INFO", info)] if info else []
    return {"code": INTERNAL, "message": message, "details": details}


def _finished(details: list[Fields]) -> Fields:
    return {"code": FINISHED, "message": "Rollout finished", "details": details}


def _detail(reason: str, metadata: Mapping[str, object]) -> Fields:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "evalprotocol.io",
        "metadata": dict(metadata),
    }
