"""The journal's interface: what every implementation promises.

- **Durable before visible (I1).** When `append` returns, the records survive a kill, an OS crash
  and power loss (in-memory journals: they survive nothing, and say so by their name).
- **Fenced (I7).** Claiming a trajectory bumps its epoch; an append under an older one raises
  `LeaseLost` and writes nothing. Correctness never depends on a clock.
- **At most once.** A record exists once per (trajectory, seq). An outcome that is unknown is
  looked up before anything is decided.
- **Cancellation** of the coroutine that awaits an append does not cancel the append.
- **One end for each group (I6).** For each consumer, an admitted group is trained in one step,
  dismissed with a reason, or still open. A consumer holds a lease with an epoch; after losing it,
  it changes nothing.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, Self

from msgspec import Struct

from holdfast.journal.changes import Changes
from holdfast.records.errors import JournalCorrupt
from holdfast.records.run import RecordedCommand, Run, RunSpec
from holdfast.records.samples.replica_weights import ReplicaWeights
from holdfast.records.samples.summary import Summary
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey

MEMORY = "memory:"
"""The address of a journal that keeps nothing."""


class WorkerIdentity(Struct, frozen=True):
    """Who a worker is, precise enough to find out whether it still lives."""

    host: str
    pid: int
    born: str
    """When the process started, in the machine's own terms: a pid alone may be used again."""
    namespace: str = ""
    """Where its pid is valid: the boot and the PID namespace; "" if unknown."""

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
    summary: Summary | None = None
    """The trajectory's summary, which the append that settles it stores. Whoever settles it sets
    this first, with the records of that append counted in."""


Entries = Sequence[tuple[Lease, Sequence[Record], Status | None]]
"""Records for several trajectories, each with its new status, if that changes."""


class Claim(Struct):
    """A whole group: every trajectory of one task that is not settled, and the settled ones."""

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
    sealed: bool = True
    """False: a stream, to which tasks may be added."""


class Cut(Struct, frozen=True):
    """A torn or corrupt record, and what was given up with it."""

    trajectory: str
    id: int
    seq: int
    position: int
    lost: int
    reason: str
    status: Status
    """The trajectory's status, by what is left of its log."""


class RunProgress(Struct, frozen=True):
    """How far a run is. It costs the same however many trajectories the run has."""

    planned: int
    """Trajectories of the run's current tasks."""
    settled: int
    failed: int
    """Settled ones with the status FAILED."""
    sealed: bool
    """No more tasks are admitted."""

    @property
    def is_over(self) -> bool:
        """True when nothing of the run is open, and nothing more will be."""
        return self.sealed and self.settled >= self.planned


class Consumer(Struct, frozen=True):
    """The right to take a run's groups under a name, until another process takes it over."""

    run: Run
    name: str
    epoch: int
    identity: WorkerIdentity
    lease_seconds: float
    committed: int | None
    """The last step that a checkpoint held when this lease began."""


class Batch(Struct, frozen=True):
    """Whole groups, reserved for one step of one consumer."""

    consumer: str
    step: int | None
    """None for groups that were taken before their step was known."""
    groups: tuple[tuple[TrajectoryRow, ...], ...]
    ended: bool = False
    """After this batch there is nothing left: the run is sealed, everything is settled, and every
    group was taken or dismissed."""
    missing: int = 0
    """How many more settled groups the batch needs to be whole."""


class Deletion(Struct, frozen=True):
    """What was deleted with a run."""

    trajectories: int = 0
    records: int = 0
    blobs: int = 0
    """The deleted blobs: those that no other run uses."""


class GroupEnd(StrEnum):
    """What became of a group. Each has exactly one, for each consumer."""

    TRAINED = "trained"
    """In a step that a checkpoint holds."""
    DISMISSED = "dismissed"
    OPEN = "open"


class LedgerEntry(Struct, frozen=True):
    """One group in a consumer's ledger."""

    task: str
    ordinal: int
    end: GroupEnd
    step: int | None
    """The step that it is trained or dismissed in; None before that is known."""
    reason: str
    """Why it was dismissed, or how far it is: "rolling out", "ready", "taken"."""


def digest_of(body: bytes) -> bytes:
    """The name of a blob with this content."""
    return hashlib.sha256(body).digest()


class ClosedByBlock:
    """`async with` for journals: closed at the end of the block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class Journal(Protocol):
    """Everything durable. All methods are safe to call concurrently from one event loop."""

    changes: Changes
    """Says when this process admits, seals, settles or gives back something."""

    # --- runs
    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        """Plans every sample of every task. With `sealed=False`, more tasks may be admitted."""
        ...

    async def find_run(self, name: str) -> Run | None: ...
    async def find_series(self, name: str) -> list[Run]:
        """The runs of a series, the oldest first."""
        ...

    async def share(self, run: Run, others: Sequence[Run]) -> list[Run]:
        """Those of `others` of which nobody consumes anything, in whichever run: from now on, the
        run may have trajectories of theirs. Of runs that share trajectories, only one can ever be
        consumed: no trajectory is delivered twice."""
        ...

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        """Goes on with another spec, in one step: new tasks are planned, missing ones rest.

        With another scorer, settled outcomes are open again, to be scored by it: no run holds the
        rewards of two scorers. The same for the outcomes of a task that has another content now.
        Groups that a consumer has (`held_groups`) stay as they are, so that both are a `UsageError`
        while there are any.
        """
        ...

    async def annotate_run(
        self,
        run: Run,
        *,
        tags: Sequence[str] | None = None,
        command: RecordedCommand | None = None,
        training: str | None = None,
    ) -> Run:
        """Replaces a run's tags, recorded command, or training settings, also while others work on
        it; `amend_run` keeps them. None leaves them as they are."""
        ...

    async def rename_run(self, run: Run, name: str) -> Run:
        """`UsageError` for a name that is taken; while somebody holds the run, `RunHeld` or
        `ConsumerHeld`."""
        ...

    async def delete_run(self, run: Run) -> Deletion:
        """Deletes everything of the run, all or nothing. For a run that is gone, nothing happens.

        Blobs go with it unless another run refers to them. While a live worker or consumer holds
        the run, `RunHeld` or `ConsumerHeld`. `RunHeld` also where blobs would go while another run
        is worked on: it may be about to refer to them. Numbers of runs and trajectories are never
        used again, so that whoever slept through the deletion is fenced.
        """
        ...

    async def compact(self) -> int:
        """Gives the space of deleted data back to the disk, and returns how many bytes.

        It may be repeated, and changes nothing else. `RunHeld` while anybody works, since they
        would have to wait.
        """
        ...

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        """Adds tasks to a run that is not sealed, while workers work on it; how many were new.

        A task that the run has already is no error, so that this can be repeated after a kill; the
        same id with other content is a `UsageError`, and so is a new task for a sealed run. All
        of them are added, or none.
        """
        ...

    async def seal(self, run: Run) -> None:
        """Ends the admission of tasks. A sealed run may be sealed again."""
        ...

    async def unseal(self, run: Run) -> None:
        """Opens a sealed run to more tasks: a training continues after its last step. Consumers
        that have seen the end of the run are not notified."""
        ...

    async def progress(self, run: Run) -> RunProgress: ...
    async def runs(self) -> list[RunRow]: ...
    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        """The run's tasks in their order, or those with these ordinals, as they are listed."""
        ...

    async def trajectories(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> list[TrajectoryRow]:
        """The trajectories in the order of tasks and samples; with ordinals, only those of these
        tasks, and no others are read."""
        ...

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
    async def append_together(self, entries: Entries, *, settled: bool | None = None) -> None:
        """Appends to several trajectories, all or nothing."""
        ...

    async def history(self, trajectory: int) -> list[Record]:
        """All records; the first bad one raises `JournalCorrupt` with its position."""
        ...

    def summaries(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> AsyncIterator[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
        """Every trajectory with its summary, in the order of `trajectories`, a few in memory at a
        time. A log is read only if it has no stored summary, as for open trajectories. If it cannot
        be read, the error takes the summary's place."""
        ...

    async def rewards(self, run: Run) -> list[tuple[str, float]]:
        """Task and reward of each settled trajectory that has one, in their order; without those
        that rest, and those that cannot be read."""
        ...

    def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        """Every trajectory with its records, in (task, sample) order, a few in memory at a time.

        A bad record raises `JournalCorrupt` with the trajectory's name, when its turn comes."""
        ...

    async def cut(self, lease: Lease) -> Cut | None:
        """Cuts the log to its last good record if it has a bad one, and says what was lost."""
        ...

    async def reopen(self, run: Run, *, reason: str) -> int:
        """Opens settled FAILED trajectories again with new budgets; how many there were."""
        ...

    async def rescore(self, run: Run, trajectories: Collection[int]) -> int:
        """Opens those of these trajectories that are settled outcomes, to be scored again; their
        records stay. Returns how many, without groups that a consumer has."""
        ...

    # --- blobs
    async def put_blob(self, body: bytes) -> bytes:
        """Stores content once and returns its digest."""
        ...

    async def get_blob(self, digest: bytes) -> bytes: ...

    # --- weight versions
    async def publish_version(
        self,
        run: Run,
        name: str,
        *,
        step: int,
        digest: str,
        consumer: Consumer | None = None,
    ) -> int:
        """Makes a version durable before any engine gets it; its ordinal.

        The same name and digest again give the same ordinal. The same name with another digest is
        a `UsageError`: a name never stands for other bytes. With a `consumer`, `LeaseLost` if it
        has lost its lease.
        """
        ...

    async def versions(self, run: Run, *, name: str | None = None) -> list[WeightVersion]:
        """The versions in their order; with a name, only that one, and no others are read."""
        ...

    # --- weights of replicas
    async def note_weights(
        self, run: Run, record: ReplicaWeights, *, consumer: Consumer | None = None
    ) -> bool:
        """Writes the next record of a replica, or its last one anew; False, and nothing is written,
        where somebody else has noted another one meanwhile. With a `consumer`, `LeaseLost` if it
        has lost its lease."""
        ...

    async def replica_weights(self, run: Run) -> list[ReplicaWeights]:
        """The last ones of each replica, in the order of their numbers."""
        ...

    # --- delivery
    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        """Takes the consumer's lease. While a live process holds it, `ConsumerHeld`. `UsageError`
        where a run that shares trajectories with this one has a consumer."""
        ...

    async def renew(self, consumer: Consumer) -> None:
        """Extends the lease, as every operation with it does; `LeaseLost` when it is another's."""
        ...

    async def unsubscribe(self, consumer: Consumer) -> None:
        """Gives the lease back at once. What was taken stays taken."""
        ...

    async def next_batch(
        self,
        consumer: Consumer,
        step: int,
        *,
        groups: int,
        wait: float = 0.0,
        before: int | None = None,
    ) -> Batch:
        """Reserves `groups` settled groups for `step`, in the order in which they were settled.
        With `before`, only groups of tasks below that ordinal, in the order of tasks; of a stream
        that has ended, any.

        The whole batch or nothing; only of a stream that ends, what is left. Asked again, the same
        batch; groups that were dismissed from it are replaced. Waits up to `wait` seconds for a
        batch or the end of the stream; an empty batch that has not `ended` came too early.
        """
        ...

    async def take(self, consumer: Consumer, *, groups: int, wait: float = 0.0) -> Batch:
        """The same for a consumer that says later, in `commit`, which step its groups are in.

        Each call takes others; `rewind` gives back what no commit has named.
        """
        ...

    async def dismiss(self, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
        """Groups (by task) that were taken will not be trained. Repeating it changes nothing."""
        ...

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        """A checkpoint that holds everything up to `step` is safe.

        `groups` (by task) are those of `take` that were trained in `step`.
        """
        ...

    async def rewind(
        self, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
    ) -> int:
        """After a restore to the checkpoint of `step`, which is the truth: gives back what came
        later, and counts what it holds as trained; how many groups are given back.

        Also what was taken or dismissed since the last commit and belongs to no step; but not
        `trained`: groups (by task) of `take` that the checkpoint holds, each with its step, whether
        a commit has named them or not.
        """
        ...

    async def consumers(self, run: Run) -> list[str]: ...
    async def held_groups(self, run: Run) -> dict[str, list[str]]:
        """The groups (by task, in their order) that each consumer has taken or dismissed: they keep
        their members and rewards. Consumers without any are left out."""
        ...

    async def ledger(self, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
        """The state of each admitted group from ordinal `since` on, in the order of tasks. Its cost
        grows with the length of this list."""
        ...

    async def close(self) -> None: ...
    async def __aenter__(self) -> Self:
        """`async with`: closed at the end of the block."""
        ...

    async def __aexit__(self, *_: object) -> None: ...


async def keep_renewing(journal: Journal, consumer: Consumer) -> None:
    """Keeps the consumer's lease until it is cancelled; `LeaseLost` when that is too late."""
    while True:
        await asyncio.sleep(consumer.lease_seconds / 3)
        await journal.renew(consumer)
