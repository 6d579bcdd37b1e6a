"""The journal's interface: what every implementation promises.

- **Durable before visible (I1).** When `append` returns, the records survive a kill, an OS crash
  and power loss (in-memory journals: they survive nothing, and say so by their name).
- **Fenced (I7).** Claiming a trajectory bumps its epoch; an append under an older one raises
  `LeaseLost` and writes nothing. Correctness never depends on a clock.
- **At most once.** A record exists once per (trajectory, seq). An append whose outcome is unknown
  is looked up before anything is decided.
- **Cancellation** of the coroutine that awaits an append does not cancel the append.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.records.run import Run, RunSpec
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey


class WorkerIdentity(Struct, frozen=True):
    """Who a worker is, precise enough to tell whether it still lives."""

    host: str
    pid: int
    born: str
    """When the process started, in the machine's own terms: a pid alone may be used again."""
    namespace: str = ""
    """Where its pid means something: the boot and the PID namespace. "" where that is unknown."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Worker(Struct, frozen=True):
    """A joined worker; its leases live as long as its heartbeat."""

    id: int
    identity: WorkerIdentity
    run: int
    lease_seconds: float


class Lease(Struct):
    """The right to append to one trajectory, until someone else claims it.

    `next_seq` is advanced by the journal as appends are queued, so that concurrent branches of
    one trajectory keep one order. A lease with a `broken` append takes no further ones.
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


class Claim(Struct):
    """A whole group: every trajectory of one task that is not settled, and the settled ones."""

    task: Task
    ordinal: int
    open: list[Lease]
    settled: list["TrajectoryRow"]


class TrajectoryRow(Struct, frozen=True):
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
    """Its task is no longer among the run's: kept, but not worked on, reported or exported."""


class RunRow(Struct, frozen=True):
    """One run as the journal lists it."""

    name: str
    created: float
    tasks: int
    samples: int
    by_status: dict[str, int]
    settled: int
    live_workers: tuple[str, ...]


class Cut(Struct, frozen=True):
    """A torn or corrupt record, and what was given up with it."""

    trajectory: str
    id: int
    seq: int
    position: int
    lost: int
    reason: str
    status: Status
    """Where the trajectory stands by what is left of its log."""


class Batch(Struct, frozen=True):
    """Whole groups, reserved for one step of one consumer."""

    consumer: str
    step: int
    groups: tuple[tuple[TrajectoryRow, ...], ...]


def digest_of(body: bytes) -> bytes:
    """What a blob with this content is called."""
    return hashlib.sha256(body).digest()


class Journal(Protocol):
    """Everything durable. All methods are safe to call concurrently from one event loop."""

    # --- runs
    async def create_run(self, spec: RunSpec, tasks: Sequence[Task]) -> Run: ...
    async def find_run(self, name: str) -> Run | None: ...
    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        """Goes on with another spec, in one step: new tasks are planned, missing ones rest.

        With another scorer, settled outcomes are open again, to be scored by it: no run holds the
        rewards of two scorers. Groups that a consumer has stay as they are.
        """
        ...

    async def runs(self) -> list[RunRow]: ...
    async def tasks(self, run: Run) -> list[Task]: ...
    async def trajectories(self, run: Run) -> list[TrajectoryRow]: ...

    # --- workers and leases
    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        """Registers a worker; unless `share`, another live worker on the run raises `RunHeld`."""
        ...

    async def heartbeat(self, worker: Worker) -> None:
        """Extends all leases of the worker; `LeaseLost` when it was declared dead meanwhile."""
        ...

    async def leave(self, worker: Worker) -> None:
        """Gives every lease back at once."""
        ...

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        """The next unsettled groups that no live worker holds, in task order."""
        ...

    # --- the log
    async def append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None: ...
    async def append_together(
        self,
        entries: Sequence[tuple[Lease, Sequence[Record], Status | None]],
        *,
        settled: bool | None = None,
    ) -> None:
        """Appends to several trajectories, all or nothing."""
        ...

    async def history(self, trajectory: int) -> list[Record]:
        """All records; the first bad one raises `JournalCorrupt` with its position."""
        ...

    def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        """Every trajectory with its records, in (task, sample) order, a few in memory at a time.

        A bad record raises `JournalCorrupt` with the trajectory's name, when its turn comes."""
        ...

    async def cut(self, lease: Lease) -> Cut | None:
        """Cuts the log to its last good record, if it has a bad one, and says what was lost."""
        ...

    async def reopen(self, run: Run, *, reason: str) -> int:
        """Opens settled FAILED trajectories again with new budgets; how many there were."""
        ...

    # --- blobs
    async def put_blob(self, body: bytes) -> bytes:
        """Stores content once and returns its digest."""
        ...

    async def get_blob(self, digest: bytes) -> bytes: ...

    # --- delivery
    async def next_batch(self, run: Run, consumer: str, step: int, *, groups: int) -> Batch:
        """Reserves up to `groups` settled groups for `step`; asked again, the same batch."""
        ...

    async def commit(self, run: Run, consumer: str, step: int) -> None:
        """A checkpoint that holds everything up to `step` is safe."""
        ...

    async def rewind(self, run: Run, consumer: str, step: int) -> int:
        """After a restore to `step`: gives back what came later; how many groups."""
        ...

    async def close(self) -> None: ...
