"""Which weights a replica has: one record for each time that they are sent to it, or looked for.

Whoever sends weights writes these records, and everyone who samples reads them. `why_not_counted`
is the rule that both share.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.records.step import VersionSource, VersionSpan


class WeightState(StrEnum):
    """Where one sending stands."""

    WANTED = "wanted"
    """Nobody knows the replica's weights. Whoever may send weights is to send them."""
    SENDING = "sending"
    """They are on their way, or there and not checked yet."""
    CHECKED = "checked"
    """The replica computes what the trainer computes."""
    FAILED = "failed"


class ReplicaWeights(Struct, frozen=True):
    """One sending of weights to one replica, as the journal knows it."""

    replica: str
    """Its address."""
    state: WeightState
    incarnation: str = ""
    """Of the engine: another one after each of its starts. "" where the engine does not say."""
    version: str = ""
    model: str = ""
    """The name by which requests ask for the version."""
    why: str = ""
    """Of weights that are wanted, or that failed."""
    number: int = 1
    """Counted from 1 for each replica."""

    @property
    def is_checked(self) -> bool:
        return self.state is WeightState.CHECKED

    def is_of(self, incarnation: str) -> bool:
        """Whether an engine that says this is the one that got the weights."""
        return self.incarnation == incarnation


def newest_by_replica(records: Sequence[ReplicaWeights]) -> dict[str, ReplicaWeights]:
    """`records` are in the order of their numbers."""
    return {record.replica: record for record in records}


def is_undecided(records: Sequence[ReplicaWeights]) -> bool:
    """Whether the last sending is neither checked nor refused yet."""
    return bool(records) and records[-1].state is WeightState.SENDING


def why_not_counted(
    spans: Sequence[VersionSpan], records: Sequence[ReplicaWeights], incarnation: str
) -> str:
    """Why tokens do not count; "" if they do.

    `records`: those of their replica, from the one that was in force when the request began.
    `incarnation`: the engine's when the tokens arrived. Each label has to name weights that this
    incarnation was sent, and that were found right each time. Where nobody knows the label, all
    weights since the request began have to be right.
    """
    if not records:
        return "it has no record of its weights"
    if other := next((each for each in records if not each.is_of(incarnation)), None):
        return f"it was started anew ({other.incarnation or 'unknown'} is now {incarnation})"
    for span in spans:
        is_named = span.source is not VersionSource.UNKNOWN
        sendings = [each for each in records if not is_named or each.version == span.version]
        if not sendings:
            return f"it sampled with weights {span.version!r}, which it was not sent"
        if wrong := next((each for each in sendings if not each.is_checked), None):
            return wrong.why or f"its weights {wrong.version!r} are not checked"
    return ""
