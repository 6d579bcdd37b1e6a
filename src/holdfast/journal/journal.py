"""The former place of the journal's class and nouns, for code that still names it."""

from holdfast.journal.sql.journal import Journal, keep_renewing
from holdfast.journal.types import (
    MEMORY,
    Batch,
    Claim,
    Consumer,
    Cut,
    Deletion,
    Entries,
    GroupEnd,
    Lease,
    LedgerEntry,
    RunProgress,
    RunRow,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
    digest_of,
)

__all__ = [
    "MEMORY",
    "Batch",
    "Claim",
    "Consumer",
    "Cut",
    "Deletion",
    "Entries",
    "GroupEnd",
    "Journal",
    "Lease",
    "LedgerEntry",
    "RunProgress",
    "RunRow",
    "TrajectoryRow",
    "Worker",
    "WorkerIdentity",
    "digest_of",
    "keep_renewing",
]
