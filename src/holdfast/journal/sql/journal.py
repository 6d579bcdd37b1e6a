"""The journal, and what it promises on every database.

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

Most methods are one function of `sql`, which `reads` or `writes` turns into a method with the
function's own contract. The writer runs functions that change something, in a transaction. A reader
runs functions that only look. A database provides both (`_writer`, `_read_with`).
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.journal.changes import POLL_SECONDS, Changes, look_until
from holdfast.journal.entries import AppendEntry, entries_of, entry_of
from holdfast.journal.sql import deletion, delivery, leases, lineage, logs, replicas
from holdfast.journal.sql import runs as run_tables
from holdfast.journal.sql import worlds as world_tables
from holdfast.journal.sql.store import Store
from holdfast.journal.sql.writer import Append, InlineWriter, WriteCall, Writer
from holdfast.journal.types import (
    Batch,
    Claim,
    Consumer,
    Cut,
    Entries,
    Lease,
    TrajectoryRow,
    Worker,
    digest_of,
)
from holdfast.records.errors import JournalCorrupt, JournalError
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

SUMMARIZED_TASKS = 512
"""The number of tasks whose summaries are read at once."""
READ_AHEAD = 16
"""The number of logs that are read at once. Switching to another thread costs as much as reading a
short log."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


Method = Callable[Concatenate["Journal", Parameters], Coroutine[Any, Any, Result]]


def reads(
    function: Callable[Concatenate[Store, Parameters], Result],
) -> Method[Parameters, Result]:
    """Returns a journal's method that runs a function which only reads."""

    async def method(
        self: "Journal", /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        return await self.query(function, *arguments, **named)

    method.__doc__ = function.__doc__
    return method


def writes(
    function: Callable[Concatenate[Store, Parameters], Result],
    *,
    wakes: bool = False,
    takes_over: bool = False,
    hears: str = "",
) -> Method[Parameters, Result]:
    """Returns a journal's method that runs a function in a transaction of the writer.

    With `wakes`, the method then wakes everyone in this process who waits for changes. `takes_over`
    and `hears` are only for functions of a run. With `takes_over`, the method first shortens leases
    that are too long. With `hears` ("work" or "ready"), such notifications of other processes count
    as changes here from then on.
    """

    async def method(
        self: "Journal", /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        if takes_over:
            await self._shorten_leases(arguments[0])  # type: ignore[arg-type]
        result = await self.transact(function, *arguments, **named)
        if wakes:
            self.changes.notify()
        if hears:
            await self._wake_for(arguments[0], hears)  # type: ignore[arg-type]
        return result

    method.__doc__ = function.__doc__
    return method


class Journal:
    """The durable store of runs, records and ledgers. All methods are safe to call concurrently
    from one event loop. An `async with` block closes the journal at its end."""

    changes: Changes
    """Notifies waiters when this process admits, seals, settles or gives back work."""
    _writer: Writer | InlineWriter

    def __init__(self, name: str, *, read_only: bool):
        self.name = name
        """The journal's name in messages, without secrets."""
        self.changes = Changes()
        self._read_only = read_only
        self._closed = False
        self._cursors: dict[int, int] = {}

    # --- what a database brings

    @abstractmethod
    async def _read_with(self, function: Callable[[Store], Result]) -> Result:
        """Runs the function on a connection for reading."""

    async def _shorten_leases(self, run: Run) -> None:
        """Shortens leases before work is taken over, in databases whose leases use a clock that can
        be set."""

    async def _wake_for(self, run: Run, what: str) -> None:
        """Makes "work" or "ready" notifications of other processes for this run count as changes
        here, from now on."""

    @abstractmethod
    async def compact(self) -> int:
        """Gives the space of deleted data back to the disk, and returns the number of bytes.

        The call may be repeated and changes no data. Raises `RunHeld` while any run is worked on,
        because the workers would have to wait.
        """

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- reading and writing

    async def query(
        self,
        function: Callable[Concatenate[Store, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs a function that only reads."""
        if self._closed:
            raise JournalError(f"journal {self.name} is closed")
        self._writer.check_process()
        return await self._read_with(lambda store: function(store, *arguments, **named))

    async def transact(
        self,
        function: Callable[Concatenate[Store, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs a function in a transaction of the writer."""
        return await self._call(WriteCall(lambda store: function(store, *arguments, **named)))

    async def _call(self, operation: WriteCall) -> Result:
        await self._writable()
        result: Result = await self._writer.enqueue(operation)  # type: ignore[assignment]
        return result

    async def _writable(self) -> None:
        if self._read_only:
            raise JournalError(f"journal {self.name} is open for reading only")
        if not self._writer.has_room:
            await self._writer.room()

    # --- runs

    create_run = writes(run_tables.create)
    find_run = reads(run_tables.find)
    find_series = reads(run_tables.find_series)
    share = writes(lineage.share)
    amend_run = writes(run_tables.amend)
    annotate_run = writes(run_tables.annotate)
    rename_run = writes(deletion.rename, takes_over=True)
    delete_run = writes(deletion.delete, takes_over=True)
    admit = writes(run_tables.admit, wakes=True)
    seal = writes(run_tables.seal, wakes=True)
    unseal = writes(run_tables.unseal, wakes=True)
    progress = reads(run_tables.progress)
    runs = reads(run_tables.listing)
    live_workers = reads(run_tables.live_workers)
    tasks = reads(run_tables.tasks_of)
    trajectories = reads(run_tables.trajectories)
    is_rolled_out = reads(run_tables.is_rolled_out)

    # --- workers and leases

    join = writes(leases.join, takes_over=True, hears="work")
    heartbeat = writes(leases.heartbeat)
    leave = writes(leases.leave, wakes=True)

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        """Claims the next unsettled groups that no live worker holds, in the order of tasks."""
        after = self._cursors.get(worker.id, -1)
        claims = await self.transact(leases.claim, worker, groups=groups, after=after)
        if claims:
            self._cursors[worker.id] = claims[-1].ordinal
        return claims

    # --- the log

    async def append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None:
        if self._read_only or not self._writer.has_room:
            await self._writable()
        await self._append([entry_of(lease, records, status, settled)], settled)

    async def append_together(self, entries: Entries, *, settled: bool | None = None) -> None:
        """Appends records to several trajectories, all or nothing."""
        if self._read_only or not self._writer.has_room:
            await self._writable()
        await self._append(entries_of(entries, settled), settled)

    async def _append(self, entries: list[AppendEntry], settled: bool | None) -> None:
        try:
            await self._writer.enqueue(Append(entries))
        except JournalError as error:
            for entry in entries:
                entry.lease.broken = error
            raise
        for entry in entries:
            if entry.status is not None:
                entry.lease.status = entry.status
            if settled is not None:
                entry.lease.settled = settled
        if settled:
            self.changes.notify()

    async def history(self, trajectory: int) -> list[Record]:
        """Returns all records of a trajectory. At the first bad record, raises `JournalCorrupt`
        with the position of the record."""
        await self._writer.drain()
        log = (await self.query(logs.read, [trajectory]))[trajectory]
        if isinstance(log, JournalCorrupt):
            raise log
        return log

    async def summaries(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> AsyncIterator[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
        """Yields every trajectory with its summary, in the order of `trajectories`, with a few in
        memory at a time. A log is read only if the trajectory has no stored summary, for example
        because it is open. If the log cannot be read, the error takes the place of the summary."""
        await self._writer.drain()
        every = range(await self.query(run_tables.count_tasks, run))
        wanted = every if ordinals is None else sorted(set(ordinals))
        for at in range(0, len(wanted), SUMMARIZED_TASKS):
            some = wanted[at : at + SUMMARIZED_TASKS]
            for each in await self.query(logs.summaries, run, some):
                yield each

    stored_summaries = reads(run_tables.summarized)

    async def rewards(self, run: Run) -> list[tuple[str, float]]:
        """Returns the task and the reward of each settled trajectory that has a reward, in the
        order of trajectories. Leaves out resting trajectories and trajectories that cannot be
        read."""
        await self._writer.drain()
        return await self.query(logs.rewards, run)

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        """Yields every trajectory with its records, in the order of tasks and samples, with a few
        in memory at a time.

        When the turn of a trajectory with a bad record comes, raises `JournalCorrupt` with the
        trajectory's name.
        """
        await self._writer.drain()
        rows = await self.trajectories(run)
        for at in range(0, len(rows), READ_AHEAD):
            some = rows[at : at + READ_AHEAD]
            read = await self.query(logs.read, [row.id for row in some])
            for row in some:
                log = read[row.id]
                if isinstance(log, JournalCorrupt):
                    raise JournalCorrupt(f"{row.key} is corrupt: {log}") from log
                yield row, log

    async def cut(self, lease: Lease) -> Cut | None:
        """Cuts the log after its last good record, and returns what was lost; None if the log has
        no bad record."""
        cut = await self.transact(logs.cut_to_last_good, lease)
        if cut is not None:
            lease.next_seq, lease.status = cut.seq, cut.status
        return cut

    reopen = writes(logs.reopen_failed)
    rescore = writes(run_tables.rescore)

    # --- blobs

    async def put_blob(self, body: bytes) -> bytes:
        """Stores content once and returns its digest."""
        digest = digest_of(body)

        def put(store: Store) -> None:
            store.run(
                "INSERT INTO blobs VALUES (:digest, :body) ON CONFLICT(digest) DO NOTHING",
                digest=digest,
                body=body,
            )

        await self._call(WriteCall(put, size=len(body)))
        return digest

    async def get_blob(self, digest: bytes) -> bytes:
        def get(store: Store) -> bytes | None:
            row = store.row("SELECT body FROM blobs WHERE digest = :digest", digest=digest)
            return None if row is None else bytes(row[0])

        body = await self.query(get)
        if body is None:
            raise JournalCorrupt(f"there is no blob {digest.hex()[:12]}")
        if digest_of(body) != digest:
            raise JournalCorrupt(f"blob {digest.hex()[:12]} does not match its digest")
        return body

    # --- worlds

    plan_world = writes(world_tables.plan_world)
    change_world = writes(world_tables.change_world)
    worlds = reads(world_tables.worlds)
    worlds_label = writes(world_tables.worlds_label)

    # --- weight versions and delivery

    publish_version = writes(delivery.publish_version)
    versions = reads(run_tables.versions)
    note_weights = writes(replicas.note_weights, wakes=True)
    replica_weights = reads(replicas.replica_weights)
    subscribe = writes(delivery.subscribe, takes_over=True, hears="ready")
    renew = writes(delivery.renew)
    unsubscribe = writes(delivery.unsubscribe)

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
        return await self._deliver(consumer, step, groups, wait=wait, before=before)

    async def take(self, consumer: Consumer, *, groups: int, wait: float = 0.0) -> Batch:
        """Reserves groups like `next_batch`, but without a step. The consumer names the step later,
        in `commit`.

        Each call takes other groups. `rewind` gives back the groups that no commit has named.
        """
        return await self._deliver(consumer, None, groups, wait=wait)

    async def _deliver(
        self,
        consumer: Consumer,
        step: int | None,
        groups: int,
        *,
        wait: float,
        before: int | None = None,
    ) -> Batch:
        """Waits for a batch and returns it. During the wait, writes only to renew the lease."""
        poll = min(POLL_SECONDS, consumer.lease_seconds / 3)
        early, renewed = None, 0.0

        async def look() -> Batch:
            nonlocal early, renewed
            now = asyncio.get_running_loop().time()
            if (
                early is not None
                and now < renewed + poll
                and not await self.query(delivery.may_take, consumer, step, groups, before)
            ):
                return early
            early = await self.transact(delivery.take, consumer, step, groups, before)
            renewed = now
            return early

        return await look_until(
            look,
            lambda batch: bool(batch.groups) or batch.ended,
            changes=self.changes,
            wait=wait,
            poll=poll,
        )

    dismiss = writes(delivery.dismiss)
    commit = writes(delivery.commit)
    rewind = writes(delivery.rewind)
    consumers = reads(delivery.consumers)
    is_held = reads(delivery.is_held)
    held_groups = reads(run_tables.held_groups)
    ledger = reads(delivery.ledger)


async def keep_renewing(journal: Journal, consumer: Consumer) -> None:
    """Renews the consumer's lease until the task is cancelled. Raises `LeaseLost` if another
    process has taken the lease."""
    while True:
        await asyncio.sleep(consumer.lease_seconds / 3)
        await journal.renew(consumer)
