"""A group is the set of trajectories of one task. This module says what becomes of a group when
members fail."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import NamedFields, check_fields
from holdfast.records.trajectory import Status


class Shortfall(StrEnum):
    """The treatment of a group that still has too few valid members after its refills."""

    PARTIAL = "partial"
    """Keep the valid members, if there are at least `at_least`."""
    DROP = "drop"
    """Keep the group only when every member is valid."""


class GroupPolicy(Struct, frozen=True, metaclass=NamedFields):
    """The treatment of a task's trajectories when some of them fail for good. The policy is
    recorded with the run. Resuming the run with another policy is refused unless the user accepts
    changes."""

    refill: int = 1
    """How often a member is rolled out anew after its attempts are spent."""
    shortfall: Shortfall = Shortfall.PARTIAL
    at_least: int = 1
    keep_interrupted: bool = False
    """Whether a trajectory stays a valid member after its model was told that a tool call was
    interrupted. By default, such a trajectory is a failure of infrastructure."""

    def __post_init__(self) -> None:
        check_fields(self, "group ")
        check_whole("group refill", self.refill, least=0)
        check_whole("group at_least", self.at_least, least=1)

    def refills(self, life: int) -> bool:
        """Returns whether a member may be rolled out anew after its life number `life`, counted
        from 0."""
        return life < self.refill

    def keeps(self, valid: int, *, of: int) -> bool:
        """Returns whether a settled group with `valid` usable members is delivered."""
        if self.shortfall is Shortfall.DROP:
            return valid == of
        return valid >= min(self.at_least, of)


class Dismissal(StrEnum):
    """The reason why a consumer does not train on a group. A consumer may use other reasons."""

    UNINFORMATIVE = "uninformative"
    """All rewards are equal: every advantage would be zero."""
    TOO_OLD = "too old"
    """The weights that sampled the group are too many versions behind."""
    TOO_FEW_VALID = "too few valid members"
    """The run's group policy does not keep the group."""


def valid_members(statuses: Sequence[Status]) -> int:
    return sum(status.is_outcome for status in statuses)
