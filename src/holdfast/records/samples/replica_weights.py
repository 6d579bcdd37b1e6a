"""Records which weights a replica has.

There is one record for each time that a process sent weights to the replica, or found that weights
must be sent to it. The sender of weights writes these records, and every sampler reads them. Both
use the rule of `why_not_counted`.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.records.step import VersionSource, VersionSpan


class WeightState(StrEnum):
    """The state of one sending of weights."""

    WANTED = "wanted"
    """The replica's weights are unknown. A process that may send weights must send them."""
    SENDING = "sending"
    """The weights are on their way, or they have arrived and are not checked yet."""
    CHECKED = "checked"
    """The replica was checked: it computes the same as the trainer."""
    FAILED = "failed"


class ReplicaWeights(Struct, frozen=True):
    """One sending of weights to one replica, as the journal knows it."""

    replica: str
    """The replica's address."""
    state: WeightState
    incarnation: str = ""
    """The engine's incarnation, which changes at each start; "" if the engine does not report
    it."""
    version: str = ""
    model: str = ""
    """The name by which requests ask for the version."""
    why: str = ""
    """The reason why the weights are wanted or failed."""
    number: int = 1
    """The number of the sending, counted from 1 for each replica."""

    @property
    def is_checked(self) -> bool:
        return self.state is WeightState.CHECKED

    def is_of(self, incarnation: str) -> bool:
        """Returns whether an engine with this incarnation is the engine that got the weights."""
        return self.incarnation == incarnation


def newest_by_replica(records: Sequence[ReplicaWeights]) -> dict[str, ReplicaWeights]:
    """Returns the newest record of each replica. `records` are in the order of their numbers."""
    return {record.replica: record for record in records}


def is_undecided(records: Sequence[ReplicaWeights]) -> bool:
    """Returns whether the last sending is neither checked nor failed yet."""
    return bool(records) and records[-1].state is WeightState.SENDING


def why_not_counted(
    spans: Sequence[VersionSpan], records: Sequence[ReplicaWeights], incarnation: str
) -> str:
    """Returns the reason why tokens do not count and must be sampled again; "" if they count.

    `records` are the records of the replica, starting with the record in force when the request
    began. `incarnation` is the engine's incarnation when the tokens arrived. Each version label
    must name weights that this incarnation was sent and that passed every check. If the label is
    unknown, all weights since the request began must have passed.
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
