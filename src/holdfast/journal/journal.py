"""The journal's interface, and what every implementation promises.

- **Durable before visible (I1).** When `append` returns, the records survive a kill, an OS crash
  and power loss. Records in an in-memory journal survive none of these.
- **Fenced (I7).** Claiming a trajectory raises its epoch. An append with an older epoch raises
  `LeaseLost` and writes nothing. Correctness never depends on a clock.
- **At most once.** A record exists once per (trajectory, seq). If the outcome of a write is
  unknown, the journal looks it up before it decides anything.
- **Cancellation** of the coroutine that awaits an append does not cancel the append.
- **One end for each group (I6).** For each consumer, an admitted group is trained in one step,
  dismissed with a reason, or still open. A consumer holds a lease with an epoch. A consumer that
  has lost its lease cannot change anything.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, Self

from msgspec import Struct

from holdfast.journal.changes import Changes
from holdfast.journal.worlds import WorldLedger
from holdfast.records.errors import JournalCorrupt
from holdfast.records.run import RecordedCommand, Run, RunSpec
from holdfast.records.samples.replica_weights import ReplicaWeights
from holdfast.records.samples.summary import Summary
from holdfast.records.samples.version import WeightVersion
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
    """The start time of the process, in the machine's own terms. The system may reuse a pid, so the
    pid is not enough."""
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
    """A torn or corrupt record, and what the journal gave up with it."""

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
    """None for groups that were taken before their step was known."""
    groups: tuple[tuple[TrajectoryRow, ...], ...]
    ended: bool = False
    """Whether no batch can follow: the run is sealed, every trajectory is settled, and every group
    was taken or dismissed."""
    missing: int = 0
    """The number of settled groups that the batch still lacks."""


class Deletion(Struct, frozen=True):
    """The numbers of what was deleted with a run."""

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


class ClosedByBlock:
    """A base class that closes the journal at the end of an `async with` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class Journal(WorldLedger, Protocol):
    """The store of everything durable. All methods are safe to call concurrently from one event
    loop."""

    changes: Changes
    """Notifies waiters when this process admits, seals, settles or gives back work."""

    # --- runs
    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        """Creates a run and plans every sample of every task. With `sealed=False`, the run accepts
        more tasks later."""
        ...

    async def find_run(self, name: str) -> Run | None: ...
    async def find_series(self, name: str) -> list[Run]:
        """Returns the runs of a series, the oldest first."""
        ...

    async def share(self, run: Run, others: Sequence[Run]) -> list[Run]:
        """Allows the run to use trajectories of other runs, and returns the runs that it may use.

        The result leaves out each run with trajectories that a consumer already uses, in whichever
        run. If runs share trajectories, only one of the runs can ever be consumed, so that no
        trajectory is delivered twice.
        """
        ...

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        """Replaces the run's spec and tasks in one step. The journal plans new tasks, and missing
        tasks rest.

        If the scorer changes, settled outcomes are opened again, so that the new scorer scores them
        and no run mixes rewards of two scorers. If the content of a task changes, the outcomes of
        that task are opened again. Groups that a consumer has (`held_groups`) keep their rewards. A
        change that would score such a group again raises `UsageError`.
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
        """Replaces a run's tags, recorded command or training settings, even while others work on
        the run. None keeps the old value. `amend_run` keeps all three."""
        ...

    async def rename_run(self, run: Run, name: str) -> Run:
        """Renames the run. Raises `UsageError` if the name is taken, and `RunHeld` or
        `ConsumerHeld` while a worker or a consumer holds the run."""
        ...

    async def delete_run(self, run: Run) -> Deletion:
        """Deletes everything of the run, all or nothing. Does nothing if the run no longer exists.

        Blobs are deleted too, unless another run refers to them. Raises `RunHeld` or `ConsumerHeld`
        while a live worker or consumer holds the run. Raises `RunHeld` if blobs would be deleted
        while another run is worked on, because that run may be about to refer to them. The numbers
        of runs and trajectories are never used again, so that a process that slept through the
        deletion is fenced.
        """
        ...

    async def compact(self) -> int:
        """Gives the space of deleted data back to the disk, and returns the number of bytes.

        The call may be repeated and changes no data. Raises `RunHeld` while any run is worked on,
        because the workers would have to wait.
        """
        ...

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        """Adds tasks to a run that is not sealed, even while workers work on it. Returns the number
        of new tasks.

        Tasks that the run already has are skipped, so that the call can be repeated after a kill.
        Raises `UsageError` if a known id has other content, or if the run is sealed and a task is
        new. Adds all tasks or none.
        """
        ...

    async def seal(self, run: Run) -> None:
        """Ends the admission of tasks. Sealing a sealed run does nothing."""
        ...

    async def unseal(self, run: Run) -> None:
        """Opens a sealed run to more tasks, for a training that continues after its last step.
        Consumers that have seen the end of the run are not notified."""
        ...

    async def progress(self, run: Run) -> RunProgress: ...
    async def runs(self, *, counted: bool = True) -> list[RunRow]:
        """Returns all runs. Without `counted`, `by_status` is empty, and the cost does not grow
        with the number of trajectories."""
        ...

    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        """Returns the run's tasks in their order. With `ordinals`, returns the tasks with these
        ordinals, in the order of `ordinals`. Raises `UsageError` for an ordinal without a task."""
        ...

    async def trajectories(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> list[TrajectoryRow]:
        """Returns the trajectories in the order of tasks and samples. With `ordinals`, reads and
        returns only the trajectories of these tasks."""
        ...

    # --- workers and leases
    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        """Registers a worker. Without `share`, raises `RunHeld` if another live worker is on the
        run."""
        ...

    async def heartbeat(self, worker: Worker) -> None:
        """Extends all leases of the worker. Raises `LeaseLost` if the worker was declared dead in
        the meantime."""
        ...

    async def leave(self, worker: Worker) -> None:
        """Gives all leases of the worker back at once."""
        ...

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        """Claims the next unsettled groups that no live worker holds, in the order of tasks."""
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
        """Returns all records of a trajectory. At the first bad record, raises `JournalCorrupt`
        with the position of the record."""
        ...

    def summaries(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> AsyncIterator[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
        """Yields every trajectory with its summary, in the order of `trajectories`, with a few in
        memory at a time. A log is read only if the trajectory has no stored summary, for example
        because it is open. If the log cannot be read, the error takes the place of the summary."""
        ...

    async def stored_summaries(
        self, run: Run, ordinals: Collection[int]
    ) -> list[tuple[TrajectoryRow, Summary | None]]:
        """Returns the trajectories of these tasks, each with its stored summary. Reads no log:
        without a stored summary, for example of an open trajectory, the summary is None."""
        ...

    async def rewards(self, run: Run) -> list[tuple[str, float]]:
        """Returns the task and the reward of each settled trajectory that has a reward, in the
        order of trajectories. Leaves out resting trajectories and trajectories that cannot be
        read."""
        ...

    def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        """Yields every trajectory with its records, in the order of tasks and samples, with a few
        in memory at a time.

        When the turn of a trajectory with a bad record comes, raises `JournalCorrupt` with the
        trajectory's name.
        """
        ...

    async def cut(self, lease: Lease) -> Cut | None:
        """Cuts the log after its last good record, and returns what was lost; None if the log has
        no bad record."""
        ...

    async def reopen(self, run: Run, *, reason: str) -> int:
        """Opens settled FAILED trajectories again with new budgets. Skips groups that a consumer
        has. Returns the number of opened trajectories."""
        ...

    async def rescore(self, run: Run, trajectories: Collection[int]) -> int:
        """Opens settled outcomes among these trajectories again, so that they are scored again.
        Their records stay. Skips groups that a consumer has. Returns the number of opened
        trajectories."""
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
        """Makes a version durable before any engine gets it, and returns the ordinal of the
        version.

        The same name and digest again give the same ordinal. The same name with another digest
        raises `UsageError`, so that a name always stands for the same bytes. If a `consumer` is
        given and has lost its lease, raises `LeaseLost`.
        """
        ...

    async def versions(self, run: Run, *, name: str | None = None) -> list[WeightVersion]:
        """Returns the versions in their order. With `name`, reads and returns only the version of
        that name."""
        ...

    # --- weights of replicas
    async def note_weights(
        self, run: Run, record: ReplicaWeights, *, consumer: Consumer | None = None
    ) -> bool:
        """Writes the next record of a replica, or replaces the replica's last record. Returns False
        without writing if another process has noted a record in the meantime. If a `consumer` is
        given and has lost its lease, raises `LeaseLost`."""
        ...

    async def replica_weights(self, run: Run) -> list[ReplicaWeights]:
        """Returns the last records of each replica, in the order of their numbers."""
        ...

    # --- delivery
    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        """Takes the consumer's lease. Raises `ConsumerHeld` while a live process holds the lease,
        and `UsageError` if a run that shares trajectories with this run has a consumer."""
        ...

    async def renew(self, consumer: Consumer) -> None:
        """Extends the lease, as every operation of the consumer does. Raises `LeaseLost` if another
        process holds the lease now."""
        ...

    async def unsubscribe(self, consumer: Consumer) -> None:
        """Gives the lease back at once. Groups that were taken stay taken."""
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
        With `before`, reserves only groups of tasks below that ordinal, in the order of tasks.
        After the end of the stream, `before` excludes no group.

        Returns the whole batch or an empty batch. At the end of a stream, returns the groups that
        are left. If the caller asks again for a step, the caller gets the same batch, and other
        groups replace the dismissed groups. Waits up to `wait` seconds for a batch or for the end
        of the stream. An empty batch with `ended` False means that too few groups are settled yet.
        """
        ...

    async def take(self, consumer: Consumer, *, groups: int, wait: float = 0.0) -> Batch:
        """Reserves groups like `next_batch`, but without a step. The consumer names the step later,
        in `commit`.

        Each call takes other groups. `rewind` gives back the groups that no commit has named.
        """
        ...

    async def dismiss(self, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
        """Dismisses taken groups, named by their tasks: they will not be trained. Repeating the
        call changes nothing."""
        ...

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        """Notes that a checkpoint with everything up to `step` is safe.

        `groups` names the groups of `take`, by their tasks, that were trained in `step`.
        """
        ...

    async def rewind(
        self, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
    ) -> int:
        """Resets the consumer to the checkpoint of `step`, after a restore. Returns the number of
        groups that are given back.

        Groups of later steps are given back, and groups that the checkpoint holds count as trained.
        Groups without a step that were taken or dismissed since the last commit are given back too.
        `trained` names groups of `take`, by their tasks, that the checkpoint holds, each with its
        step. These groups are kept, even if no commit has named them.
        """
        ...

    async def consumers(self, run: Run) -> list[str]: ...
    async def is_held(self, run: Run, consumer: str) -> bool:
        """Returns whether a live process holds the lease of the consumer with this name."""
        ...

    async def held_groups(self, run: Run) -> dict[str, list[str]]:
        """Returns the groups that each consumer has taken or dismissed, named by their tasks and in
        their order. Such groups keep their members and rewards. Consumers without groups are left
        out."""
        ...

    async def ledger(self, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
        """Returns the state of each admitted group from ordinal `since` on, in the order of tasks.
        The cost grows with the length of the returned list."""
        ...

    async def close(self) -> None: ...
    async def __aenter__(self) -> Self:
        """Returns the journal; an `async with` block closes it at its end."""
        ...

    async def __aexit__(self, *_: object) -> None: ...


async def keep_renewing(journal: Journal, consumer: Consumer) -> None:
    """Renews the consumer's lease until the task is cancelled. Raises `LeaseLost` if another
    process has taken the lease."""
    while True:
        await asyncio.sleep(consumer.lease_seconds / 3)
        await journal.renew(consumer)
