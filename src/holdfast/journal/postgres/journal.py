"""The journal on PostgreSQL: any number of processes on any number of machines.

One connection writes (`writer`), another one reads and listens. Both are made when they are first
needed, and again after they were lost: a server that restarts is an outage, in which everything
waits, and no failure. Waiters are woken by LISTEN/NOTIFY; as nothing depends on a notification,
they look again after a while in any case.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import Context
from typing import Concatenate, ParamSpec, TypeVar

from holdfast.journal.changes import POLL_SECONDS, Changes, look_until
from holdfast.journal.entries import AppendEntry, entries_of, entry_of
from holdfast.journal.journal import (
    TASK_PREFIX,
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
from holdfast.journal.postgres import deletion, delivery, leases, logs, runs, schema
from holdfast.journal.postgres.address import ServerAddress, address_of
from holdfast.journal.postgres.connection import (
    Connect,
    Link,
    Outage,
    ServerConnection,
    plain_connect,
)
from holdfast.journal.postgres.errors import explain, gone, is_outage
from holdfast.journal.postgres.writer import PendingWrite, ServerWriter
from holdfast.journal.rules import (
    check_batch,
    check_consumer,
    check_reason,
    check_step,
    check_version,
)
from holdfast.records.errors import HoldfastError, JournalCorrupt, JournalError
from holdfast.records.run import RecordedCommand, Run, RunSpec
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status

CHANNEL = "holdfast"
READ_AHEAD = 16
"""Logs that are read at once."""
_PAUSE = 0.05
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class PostgresJournal(ClosedByBlock):
    """See `Journal` for what it promises. Use `open_journal`, or close it yourself."""

    def __init__(
        self,
        where: str | ServerAddress,
        *,
        read_only: bool = False,
        connect: Connect = plain_connect,
    ):
        self.address = where if isinstance(where, ServerAddress) else address_of(where)
        self.changes = Changes()
        self._read_only = read_only
        self._closed = False
        self._process = os.getpid()
        self._cursors: dict[int, int] = {}
        self._working: set[int] = set()
        self._consuming: set[int] = set()
        outage = Outage()
        self._writer = ServerWriter(self.address, connect, outage)
        self._reader = Link(self.address, connect, self._ready_to_read, outage, read_only=read_only)
        self._keeper: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    # --- writing

    async def _write(
        self,
        function: Callable[Concatenate[ServerConnection, Parameters], Awaitable[Result]],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """A transaction of its own, in the order of the calls."""
        return await self._call(lambda connection: function(connection, *arguments, **named))

    async def _repeat(
        self,
        function: Callable[Concatenate[ServerConnection, Parameters], Awaitable[Result]],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """The same for what may be done twice: it takes one round trip."""
        return await self._call(
            lambda connection: function(connection, *arguments, **named), repeatable=True
        )

    async def _call(
        self,
        function: Callable[[ServerConnection], Awaitable[Result]],
        *,
        repeatable: bool = False,
        size: int = 0,
    ) -> Result:
        await self._writable()
        operation = PendingWrite(function=function, repeatable=repeatable, size=size)
        result: Result = await self._writer.enqueue(operation)  # type: ignore[assignment]
        return result

    async def _writable(self) -> None:
        if self._read_only:
            raise JournalError(f"journal {self.address.name} is open for reading only")
        self._check_process()
        if not self._writer.has_room:
            await self._writer.room()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise JournalError(
                f"journal {self.address.name} was opened before this process was forked; open it "
                "anew"
            )

    # --- reading

    async def _read(
        self,
        function: Callable[Concatenate[ServerConnection, Parameters], Awaitable[Result]],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """On the other connection; what a lost one did not answer is asked again."""
        if self._closed:
            raise JournalError(f"journal {self.address.name} is closed")
        self._check_process()
        self._keep()
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        async with self._reading:
            while True:
                try:
                    return await function(await self._reader.get(), *arguments, **named)
                except HoldfastError:
                    raise
                except Exception as error:
                    if not is_outage(error):
                        raise explain(error, self.address) from error
                    self._reader.drop()
                    deadline = deadline or loop.time() + self.address.outage_seconds
                    if loop.time() > deadline:
                        raise gone(error, self.address) from None
                except BaseException:
                    # Cancelled within a statement: its answer must not be taken for the next one's.
                    self._reader.drop()
                    raise
                await asyncio.sleep(_PAUSE)

    def _keep(self) -> None:
        """Ends the connection with its event loop, if nobody closes it before."""
        loop = asyncio.get_running_loop()
        if self._keeper is None or self._keeper.done() or self._keeper.get_loop() is not loop:
            self._reader.drop()
            self._reading = asyncio.Lock()
            self._keeper = loop.create_task(
                self._until_the_end(), name=f"{TASK_PREFIX}-reader", context=Context()
            )

    async def _until_the_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._reader.drop()

    async def _ready_to_read(self, connection: ServerConnection) -> None:
        if self._read_only:
            await schema.require(connection, self.address)
            await schema.refuse_losses(connection, self.address)
        else:
            await schema.prepare(connection, self.address)
        listen = getattr(connection, "add_listener", None)
        if listen is not None and not self._read_only:
            await listen(CHANNEL, self._hear)

    def _hear(self, connection: object, pid: int, channel: str, payload: object) -> None:
        del connection, pid, channel
        run, _, what = str(payload).partition(" ")
        waiting = self._working if what == "work" else self._consuming
        if run.isdigit() and int(run) in waiting:
            self.changes.notify()

    async def _listen(self) -> None:
        """Whoever waits from now on is woken by others."""
        await self._read(_nothing)

    # --- for what is no part of the interface, see `copying`

    async def transact(
        self,
        function: Callable[Concatenate[ServerConnection, Parameters], Awaitable[Result]],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs it in a transaction of the writer's."""
        return await self._write(function, *arguments, **named)

    async def query(
        self,
        function: Callable[Concatenate[ServerConnection, Parameters], Awaitable[Result]],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs it on a connection that reads."""
        return await self._read(function, *arguments, **named)

    # --- runs

    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        return await self._write(runs.create, spec, tasks, sealed=sealed)

    async def find_run(self, name: str) -> Run | None:
        return await self._read(runs.find, name)

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        return await self._write(runs.amend, run, spec, tasks, differences)

    async def annotate_run(
        self,
        run: Run,
        *,
        tags: Sequence[str] | None = None,
        command: RecordedCommand | None = None,
        training: str | None = None,
    ) -> Run:
        return await self._write(runs.annotate, run, tags, command, training)

    async def rename_run(self, run: Run, name: str) -> Run:
        await self._repeat(leases.shorten, run)

        async def rename(connection: ServerConnection) -> Run:
            await deletion.refuse_if_held(connection, await runs.lock(connection, run))
            return await runs.rename(connection, run, name)

        return await self._write(rename)

    async def delete_run(self, run: Run) -> Deletion:
        await self._repeat(leases.shorten, run)
        return await self._write(deletion.delete, run)

    async def compact(self) -> int:
        return await self._repeat(deletion.give_space_back)

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        admitted = await self._write(runs.admit, run, tasks)
        self.changes.notify()
        return admitted

    async def seal(self, run: Run) -> None:
        await self._write(runs.seal, run)
        self.changes.notify()

    async def unseal(self, run: Run) -> None:
        await self._write(runs.unseal, run)
        self.changes.notify()

    async def progress(self, run: Run) -> RunProgress:
        return await self._read(runs.progress, run)

    async def runs(self) -> list[RunRow]:
        return await self._read(runs.listing)

    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        if ordinals is None:
            return await self._read(runs.tasks, run)
        return await self._read(runs.some_tasks, run, ordinals)

    async def trajectories(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> list[TrajectoryRow]:
        if ordinals is None:
            return await self._read(runs.trajectories, run)
        return await self._read(runs.some_trajectories, run, list(ordinals))

    # --- workers and leases

    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        await self._repeat(leases.shorten, run)
        worker = await self._write(
            leases.join, run, identity, lease_seconds=lease_seconds, share=share
        )
        self._working.add(run.id)
        await self._listen()
        return worker

    async def heartbeat(self, worker: Worker) -> None:
        await self._repeat(leases.heartbeat, worker)

    async def leave(self, worker: Worker) -> None:
        await self._write(leases.release, worker.id)
        self.changes.notify()

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        # Claims go through the tasks in order; only when the end is reached is the beginning
        # looked at again, for groups that others gave back.
        after = self._cursors.get(worker.id, -1)
        claims = await self._write(leases.claim, worker, groups=groups, after=after)
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
        await self._writable()
        await self._append([entry_of(lease, records, status, settled)], settled)

    async def append_together(self, entries: Entries, *, settled: bool | None = None) -> None:
        await self._writable()
        await self._append(entries_of(entries, settled), settled)

    async def _append(self, entries: list[AppendEntry], settled: bool | None) -> None:
        try:
            await self._writer.enqueue(PendingWrite(entries=entries))
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
        return _good((await self._read(logs.read, [trajectory]))[trajectory])

    async def last_records(self, run: Run) -> dict[int, Record]:
        await self._writer.drain()
        return await self._read(logs.last_records, run)

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        await self._writer.drain()
        rows = await self.trajectories(run)
        for at in range(0, len(rows), READ_AHEAD):
            some = rows[at : at + READ_AHEAD]
            found = await self._read(logs.read, [row.id for row in some])
            for row in some:
                log = found[row.id]
                if isinstance(log, JournalCorrupt):
                    raise JournalCorrupt(f"{row.key} is corrupt: {log}") from log
                yield row, log

    async def cut(self, lease: Lease) -> Cut | None:
        cut = await self._write(logs.cut_to_last_good, lease)
        if cut is not None:
            lease.next_seq, lease.status = cut.seq, cut.status
        return cut

    async def reopen(self, run: Run, *, reason: str) -> int:
        return await self._write(logs.reopen_failed, run, reason)

    async def rescore(self, run: Run, trajectories: Collection[int]) -> int:
        return await self._write(runs.rescore, run, trajectories)

    # --- blobs

    async def put_blob(self, body: bytes) -> bytes:
        digest = digest_of(body)

        async def put(connection: ServerConnection) -> str:
            return await connection.execute(
                "INSERT INTO holdfast.blobs VALUES ($1, $2) ON CONFLICT DO NOTHING", digest, body
            )

        await self._call(put, repeatable=True, size=len(body))
        return digest

    async def get_blob(self, digest: bytes) -> bytes:
        async def get(connection: ServerConnection) -> bytes | None:
            body: bytes | None = await connection.fetchval(
                "SELECT body FROM holdfast.blobs WHERE digest = $1", digest
            )
            return body

        body = await self._read(get)
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

        async def publish(connection: ServerConnection) -> int:
            if consumer is not None:
                await delivery.renew(connection, consumer)
            return await runs.publish_version(connection, run, name, step=step, digest=digest)

        return await self._write(publish)

    async def versions(self, run: Run, *, name: str | None = None) -> list[WeightVersion]:
        return await self._read(runs.versions, run, name)

    # --- delivery

    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        check_consumer(name, lease_seconds)
        await self._repeat(leases.shorten, run)
        consumer = await self._write(
            delivery.subscribe, run, name, identity, lease_seconds=lease_seconds
        )
        self._consuming.add(run.id)
        await self._listen()
        return consumer

    async def renew(self, consumer: Consumer) -> None:
        await self._repeat(delivery.renew, consumer)

    async def unsubscribe(self, consumer: Consumer) -> None:
        await self._repeat(delivery.unsubscribe, consumer)

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
                and not await self._read(delivery.may_take, consumer, step, groups, before)
            ):
                return early
            taken = await self._write(delivery.take, consumer, step, groups, before)
            early, renewed = taken, now
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
        await self._write(delivery.dismiss, consumer, groups, reason=reason)

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        check_step(step)
        await self._write(delivery.commit, consumer, step, groups or ())

    async def rewind(
        self, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
    ) -> int:
        check_step(step)
        return await self._write(delivery.rewind, consumer, step, trained or {})

    async def consumers(self, run: Run) -> list[str]:
        return await self._read(delivery.consumers, run)

    async def held_groups(self, run: Run) -> dict[str, list[str]]:
        return await self._read(runs.held_groups, run)

    async def ledger(self, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
        return await self._read(delivery.ledger, run, consumer, since)

    async def close(self) -> None:
        """Finishes what is queued. It may be repeated."""
        if os.getpid() != self._process:
            return  # The connections are those of the process that forked this one.
        await self._writer.close()
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.get_loop() is asyncio.get_running_loop():
            await self._reader.close()
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


async def _nothing(connection: ServerConnection) -> None:
    del connection


def _good(log: "list[Record] | JournalCorrupt") -> list[Record]:
    if isinstance(log, JournalCorrupt):
        raise log
    return log
