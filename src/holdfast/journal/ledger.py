"""What the ledger of a run's groups means, in whichever database it is kept."""

from enum import IntEnum

from holdfast.journal.journal import GroupEnd


class DeliveryState(IntEnum):
    """Of a group that a consumer has looked at. The numbers are the journal's."""

    READY = 0
    """Not taken yet, or given back."""
    TAKEN = 1
    """For its `step`; trained, when a checkpoint holds that step."""
    DISMISSED = 2
    """By the consumer."""
    SHORT = 3
    """By the run's group policy: it has too few valid members."""


def end_of(
    state: int | None, step: int | None, reason: str | None, *, committed: int | None, settled: bool
) -> tuple[GroupEnd, int | None, str]:
    """How a group ended: the end, its step, and the reason or how far it is."""
    if state == DeliveryState.TAKEN:
        if step is not None and committed is not None and step <= committed:
            return GroupEnd.TRAINED, step, ""
        return GroupEnd.OPEN, step, "taken"
    if state in (DeliveryState.DISMISSED, DeliveryState.SHORT):
        return GroupEnd.DISMISSED, step, reason or ""
    return GroupEnd.OPEN, None, "ready" if settled else "rolling out"


def later_than(step: int | None, committed: int | None) -> bool:
    """Whether a step comes after what the last checkpoint holds, or has no number yet."""
    return step is None or committed is None or step > committed
