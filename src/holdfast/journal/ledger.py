"""The rules of the ledger of a run's groups, for every database."""

from collections.abc import Mapping
from enum import IntEnum

from holdfast.journal.rules import not_taken, step_passed
from holdfast.journal.types import Consumer, GroupEnd

KnownGroup = tuple[int, int | None, int | None, str]
"""A group that a consumer names: the number of its task, its state, its step and the reason of its
dismissal. The state is None if the consumer has no such group."""
UNKNOWN: KnownGroup = (-1, None, None, "")


class DeliveryState(IntEnum):
    """What became of a group that was ready. The journal stores these numbers."""

    TAKEN = 1
    """The group is taken for its `step`. It counts as trained when a checkpoint holds that step."""
    DISMISSED = 2
    """The consumer dismissed the group."""
    SHORT = 3
    """The run's group policy dismissed the group, because too few members are valid."""


def end_of(
    state: int | None, step: int | None, reason: str | None, *, committed: int | None, settled: bool
) -> tuple[GroupEnd, int | None, str]:
    """Returns the end of a group, its step, and a text: the reason of the dismissal, or the
    progress of an open group."""
    if state == DeliveryState.TAKEN:
        if step is not None and committed is not None and step <= committed:
            return GroupEnd.TRAINED, step, ""
        return GroupEnd.OPEN, step, "taken"
    if state in (DeliveryState.DISMISSED, DeliveryState.SHORT):
        return GroupEnd.DISMISSED, step, reason or ""
    return GroupEnd.OPEN, None, "ready" if settled else "rolling out"


def later_than(step: int | None, committed: int | None) -> bool:
    """Returns whether a step has no number yet or comes after the last committed step."""
    return step is None or committed is None or step > committed


def fresh_tasks(
    consumer: Consumer, step: int, known: Mapping[str, KnownGroup], *, committed: int | None
) -> list[int]:
    """Returns the tasks of the named groups that a commit newly puts into `step`. Groups that are
    already in `step` are left out.

    Raises `UsageError` if a group was not taken or is in another step, or if `step` has passed.
    """
    fresh: list[int] = []
    wrong: list[str] = []
    for name, (task, state, before, _) in known.items():
        if state != DeliveryState.TAKEN or before not in (None, step):
            wrong.append(name)
        elif before is None:
            fresh.append(task)
    if wrong:
        raise not_taken(consumer.name, wrong)
    if fresh and not later_than(step, committed):
        raise step_passed(consumer.name, step=step, last=committed or 0)
    return fresh
