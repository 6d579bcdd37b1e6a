"""The basic data types of a journal: workers, leases, claims, runs as they are listed, and the
ledger."""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey

MEMORY = "memory:"
"""The address of a journal in memory, which is lost with the process."""


class WorkerIdentity(Struct, frozen=True):
    """The identity of a worker, precise enough to find out whether the process still lives."""

    host: str
    pid: int
    born: str
    """The start time of the process, in units of its machine. It is needed because the system may
    give the pid to another process later."""
    namespace: str = ""
    """The boot and the PID namespace in which the pid is valid; "" if unknown."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Worker(Struct, frozen=True):
    """A worker that has joined a run. Its leases live as long as its heartbeat."""

    id: int
    identity: WorkerIdentity
    run: int
    lease_seconds: float


class Lease(Struct):
    """The right to append to one trajectory, until another worker claims the trajectory.

    The journal advances `next_seq` when it queues an append, so that concurrent branches of one
    trajectory keep one order. After an append has failed (`broken`), the lease takes no more
    appends.
    """

    key: TrajectoryKey
    id: int
    ordinal: int
    """The task's ordinal in the run."""
    epoch: int
    status: Status
    settled: bool
    next_seq: int
    broken: BaseException | None = None
    summary: Summary | None = None
    """The trajectory's summary. The append that settles the trajectory stores it. The caller sets
    the summary before that append and counts the append's records in."""


Entries = Sequence[tuple[Lease, Sequence[Record], Status | None]]
"""Records for several trajectories. Each entry has the trajectory's new status, or None to keep the
status."""


class Claim(Struct):
    """A whole group: the open and the settled trajectories of one task."""

    task: Task
    ordinal: int
    open: list[Lease]
    settled: list["TrajectoryRow"]


class TrajectoryRow(Struct, frozen=True, gc=False):
    """One trajectory as the journal lists it."""

    key: TrajectoryKey
    id: int
    ordinal: int
    status: Status
    settled: bool
    epoch: int
    records: int
    owner: str
    resting: bool = False
    """Whether the run no longer has the trajectory's task. A resting trajectory is kept, but it is
    not worked on, reported or exported."""


class RunRow(Struct, frozen=True):
    """One run as the journal lists it."""

    name: str
    created: float
    tasks: int
    samples: int
    by_status: dict[str, int]
    settled: int
    live_workers: tuple[str, ...]
    sealed: bool = True
    """False for a stream, which still accepts tasks."""


class Cut(Struct, frozen=True):
    """The records that were cut from a log: the bad record and all records after it."""

    trajectory: str
    id: int
    seq: int
    position: int
    lost: int
    reason: str
    status: Status
    """The trajectory's status according to the rest of its log."""


class RunProgress(Struct, frozen=True):
    """The progress of a run. Reading it costs the same for every number of trajectories."""

    planned: int
    """The number of trajectories of the run's current tasks."""
    settled: int
    failed: int
    """The number of settled trajectories with the status FAILED."""
    sealed: bool
    """Whether the run admits no more tasks."""

    @property
    def is_over(self) -> bool:
        """Whether the run is sealed and all its trajectories are settled."""
        return self.sealed and self.settled >= self.planned


class Consumer(Struct, frozen=True):
    """The right to take a run's groups under a name, until another process takes the name over."""

    run: Run
    name: str
    epoch: int
    identity: WorkerIdentity
    lease_seconds: float
    committed: int | None
    """The last committed step when this lease began; None before the first commit."""


class Batch(Struct, frozen=True):
    """Whole groups, reserved for one step of one consumer."""

    consumer: str
    step: int | None
    """The step of the batch; None if the groups were taken before their step was known."""
    groups: tuple[tuple[TrajectoryRow, ...], ...]
    ended: bool = False
    """Whether no batch can follow: the run is sealed, every trajectory is settled, and every group
    was taken or dismissed."""
    missing: int = 0
    """The number of groups that have to become ready before the batch is complete."""


class Deletion(Struct, frozen=True):
    """The numbers of trajectories, records and blobs that were deleted with a run."""

    trajectories: int = 0
    records: int = 0
    blobs: int = 0
    """The number of deleted blobs. Blobs that another run uses are kept."""


class GroupEnd(StrEnum):
    """The end of a group. For each consumer, a group has exactly one end."""

    TRAINED = "trained"
    """The group was trained in a step that a checkpoint holds."""
    DISMISSED = "dismissed"
    OPEN = "open"


class LedgerEntry(Struct, frozen=True):
    """One group in a consumer's ledger."""

    task: str
    ordinal: int
    end: GroupEnd
    step: int | None
    """The step in which the group is trained or dismissed; None before the step is known."""
    reason: str
    """The reason of the dismissal, or the progress of an open group: "rolling out", "ready" or
    "taken"."""


def digest_of(body: bytes) -> bytes:
    """Returns the name of the blob with this content: its SHA-256 digest."""
    return hashlib.sha256(body).digest()
