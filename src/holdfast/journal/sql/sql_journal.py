"""The journal over a store: the interface, once for every database.

What changes something is a function of the store that the writer runs in a transaction; what only
looks is one that a reader runs. A database brings both (`_writer`, `_read`), and nothing else.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from holdfast.journal.changes import POLL_SECONDS, Changes, look_until
from holdfast.journal.entries import AppendEntry, entries_of, entry_of
from holdfast.journal.journal import (
    Batch,
    Claim,
    ClosedByBlock,
    Consumer,
    Cut,
    Deletion,
    Entries,
    Lease,
    LedgerEntry,
    RunProgress,
    RunRow,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
    digest_of,
)
from holdfast.journal.rules import (
    check_batch,
    check_consumer,
    check_reason,
    check_step,
    check_version,
)
from holdfast.journal.sql import deletion, delivery, leases, logs, replicas, runs
from holdfast.journal.sql.store import Store
from holdfast.journal.sql.writer import Append, InlineWriter, WriteCall, Writer
from holdfast.records.errors import JournalCorrupt, JournalError
from holdfast.records.run import RecordedCommand, Run, RunSpec
from holdfast.records.samples.replica_weights import ReplicaWeights
from holdfast.records.samples.summary import Summary
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status

SUMMARIZED_TASKS = 512
"""Tasks whose summaries are read at once."""
READ_AHEAD = 16
"""Logs that are read at once: a hop to another thread costs as much as reading a short one."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class SqlJournal(ClosedByBlock):
    """See `Journal` for what it promises."""

    _writer: Writer | InlineWriter

    def __init__(self, name: str, *, read_only: bool):
        self.name = name
        """How messages call it: no secret is in it."""
        self.changes = Changes()
        self._read_only = read_only
        self._closed = False
        self._cursors: dict[int, int] = {}

    # --- what a database brings

    @abstractmethod
    async def _read_with(self, function: Callable[[Store], Result]) -> Result:
        """Runs it on a connection that reads."""

    async def _shorten_leases(self, run: Run) -> None:
        """Where leases go by a clock that can be set: before work is taken over."""

    async def _wake_for(self, run: Run, what: str) -> None:
        """From now on, another process's "work" or "ready" of the run is a change here."""

    @abstractmethod
    async def compact(self) -> int: ...

    @abstractmethod
    async def close(self) -> None: ...

    # --- reading and writing

    async def query(
        self,
        function: Callable[Concatenate[Store, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs a function that only looks."""
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
        """Runs a function in a transaction of the writer's."""
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

    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        return await self.transact(runs.create, spec, tasks, sealed=sealed)

    async def find_run(self, name: str) -> Run | None:
        return await self.query(runs.find, name)

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        return await self.transact(runs.amend, run, spec, tasks, differences)

    async def annotate_run(
        self,
        run: Run,
        *,
        tags: Sequence[str] | None = None,
        command: RecordedCommand | None = None,
        training: str | None = None,
    ) -> Run:
        return await self.transact(runs.annotate, run, tags, command, training)

    async def rename_run(self, run: Run, name: str) -> Run:
        def rename(store: Store) -> Run:
            deletion.refuse_if_held(store, runs.lock(store, run))
            return runs.rename(store, run, name)

        await self._shorten_leases(run)
        return await self.transact(rename)

    async def delete_run(self, run: Run) -> Deletion:
        await self._shorten_leases(run)
        return await self.transact(deletion.delete, run)

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        admitted = await self.transact(runs.admit, run, tasks)
        self.changes.notify()
        return admitted

    async def seal(self, run: Run) -> None:
        await self.transact(runs.seal, run)
        self.changes.notify()

    async def unseal(self, run: Run) -> None:
        await self.transact(runs.unseal, run)
        self.changes.notify()

    async def progress(self, run: Run) -> RunProgress:
        return await self.query(runs.progress, run)

    async def runs(self) -> list[RunRow]:
        return await self.query(runs.listing)

    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        if ordinals is None:
            return await self.query(runs.tasks, run)
        return await self.query(runs.some_tasks, run, ordinals)

    async def trajectories(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> list[TrajectoryRow]:
        return await self.query(runs.trajectories, run, ordinals=ordinals)

    # --- workers and leases

    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        await self._shorten_leases(run)
        worker = await self.transact(
            leases.join, run, identity, lease_seconds=lease_seconds, share=share
        )
        await self._wake_for(run, "work")
        return worker

    async def heartbeat(self, worker: Worker) -> None:
        await self.transact(leases.heartbeat, worker)

    async def leave(self, worker: Worker) -> None:
        await self.transact(leases.release, worker.id)
        self.changes.notify()

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
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
        await self._writer.drain()
        log = (await self.query(logs.read, [trajectory]))[trajectory]
        if isinstance(log, JournalCorrupt):
            raise log
        return log

    async def summaries(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> AsyncIterator[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
        await self._writer.drain()
        every = range(await self.query(runs.count_tasks, run))
        wanted = every if ordinals is None else sorted(set(ordinals))
        for at in range(0, len(wanted), SUMMARIZED_TASKS):
            some = wanted[at : at + SUMMARIZED_TASKS]
            for each in await self.query(logs.summaries, run, some):
                yield each

    async def rewards(self, run: Run) -> list[tuple[str, float]]:
        await self._writer.drain()
        return await self.query(logs.rewards, run)

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
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
        cut = await self.transact(logs.cut_to_last_good, lease)
        if cut is not None:
            lease.next_seq, lease.status = cut.seq, cut.status
        return cut

    async def reopen(self, run: Run, *, reason: str) -> int:
        return await self.transact(logs.reopen_failed, run, reason)

    async def rescore(self, run: Run, trajectories: Collection[int]) -> int:
        return await self.transact(runs.rescore, run, trajectories)

    # --- blobs

    async def put_blob(self, body: bytes) -> bytes:
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
        check_version(name, step, digest)

        def publish(store: Store) -> int:
            if consumer is not None:
                delivery.begin(store, consumer, "UPDATE")
            return runs.publish_version(store, run, name, step=step, digest=digest)

        return await self.transact(publish)

    async def versions(self, run: Run, *, name: str | None = None) -> list[WeightVersion]:
        return await self.query(runs.versions, run, name)

    # --- weights of replicas

    async def note_weights(
        self, run: Run, record: ReplicaWeights, *, consumer: Consumer | None = None
    ) -> bool:
        def note(store: Store) -> bool:
            if consumer is None:
                runs.lock(store, run)
            else:
                delivery.begin(store, consumer, "UPDATE")
            return replicas.note_weights(store, run, record)

        is_written = await self.transact(note)
        self.changes.notify()
        return is_written

    async def replica_weights(self, run: Run) -> list[ReplicaWeights]:
        return await self.query(replicas.replica_weights, run)

    # --- delivery

    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        check_consumer(name, lease_seconds)
        await self._shorten_leases(run)
        consumer = await self.transact(
            delivery.subscribe, run, name, identity, lease_seconds=lease_seconds
        )
        await self._wake_for(run, "ready")
        return consumer

    async def renew(self, consumer: Consumer) -> None:
        await self.transact(delivery.renew, consumer)

    async def unsubscribe(self, consumer: Consumer) -> None:
        await self.transact(delivery.unsubscribe, consumer)

    async def next_batch(
        self,
        consumer: Consumer,
        step: int,
        *,
        groups: int,
        wait: float = 0.0,
        before: int | None = None,
    ) -> Batch:
        check_batch(groups, step)
        return await self._deliver(consumer, step, groups, wait=wait, before=before)

    async def take(self, consumer: Consumer, *, groups: int, wait: float = 0.0) -> Batch:
        check_batch(groups)
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
        """Waiting only reads, but for the renewal of the lease."""
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

    async def dismiss(self, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
        check_reason(reason)
        await self.transact(delivery.dismiss, consumer, groups, reason=reason)

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        check_step(step)
        await self.transact(delivery.commit, consumer, step, groups or ())

    async def rewind(
        self, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
    ) -> int:
        check_step(step)
        return await self.transact(delivery.rewind, consumer, step, trained or {})

    async def consumers(self, run: Run) -> list[str]:
        return await self.query(delivery.consumers, run)

    async def held_groups(self, run: Run) -> dict[str, list[str]]:
        return await self.query(runs.held_groups, run)

    async def ledger(self, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
        return await self.query(delivery.ledger, run, consumer, since)
