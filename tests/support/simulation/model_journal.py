"""A journal that keeps everything in memory: for tests, notebooks and runs that may be lost.

The same promises as any other except durability, and the same conformance suite. It is also the
model that the SQLite one is compared with.
"""

import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

from holdfast.journal.changes import POLL_SECONDS, look_until
from holdfast.journal.lease_clock import with_lease_end
from holdfast.journal.process import is_gone
from holdfast.journal.rules import (
    check_batch,
    check_consumer,
    check_reason,
    check_step,
    check_version,
    known_version,
    lease_lost,
    run_held,
)
from holdfast.journal.types import (
    Batch,
    Claim,
    Consumer,
    Cut,
    Entries,
    Lease,
    LedgerEntry,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
    digest_of,
)
from holdfast.records.encoding.codec import decode, encode
from holdfast.records.errors import JournalCorrupt, JournalError, LeaseLost
from holdfast.records.group import valid_members
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary, summarize
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status
from support.simulation.model_ledger import ConsumerLedger, ReadyGroup
from support.simulation.model_runs import ModelRuns, ModelTrajectory


class ModelJournal(ModelRuns):
    """See `Journal`. Closing it forgets nothing; dropping it does."""

    # --- workers and leases

    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        living = []
        for worker, until in list(self._workers.values()):
            if worker.run != run.id:
                continue
            if until > time.monotonic() and not is_gone(worker.identity):
                living.append(with_lease_end(worker.identity, until - time.monotonic()))
            else:
                await self.leave(worker)
        if living and not share:
            raise run_held(run, living)
        self._worker_ids += 1
        joined = Worker(self._worker_ids, identity, run.id, lease_seconds)
        self._workers[joined.id] = (joined, time.monotonic() + lease_seconds)
        return joined

    async def heartbeat(self, worker: Worker) -> None:
        self._known(worker)
        self._workers[worker.id] = (worker, time.monotonic() + worker.lease_seconds)

    def _known(self, worker: Worker) -> None:
        if worker.id not in self._workers:
            raise LeaseLost(f"{worker.identity} no longer holds the run; it can claim nothing")

    async def leave(self, worker: Worker) -> None:
        for member in self._trajectories.values():
            if member.owner == worker.id:
                member.owner, member.epoch = None, member.epoch + 1
        self._workers.pop(worker.id, None)
        self.changes.notify()

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        await self.heartbeat(worker)
        after = self._cursors.get(worker.id, -1)
        claims = self._claim(worker, groups, after)
        if not claims and after >= 0:
            claims = self._claim(worker, groups, -1)
        if claims:
            self._cursors[worker.id] = claims[-1].ordinal
        return claims

    def _claim(self, worker: Worker, groups: int, after: int) -> list[Claim]:
        claims: list[Claim] = []
        for ordinal, task in enumerate(self._tasks[worker.run]):
            if len(claims) == groups:
                break
            if ordinal <= after:
                continue
            members = self._by_task[worker.run, ordinal]
            claimable = [member for member in members if member.settled is None]
            if not claimable or task.id not in self._current[worker.run]:
                continue
            if any(self._is_held(member) for member in claimable):
                continue
            settled = [self._row(member) for member in members if member.settled is not None]
            leases = [self._lease(member, worker) for member in claimable]
            claims.append(Claim(task, ordinal, leases, settled))
        return claims

    def _is_held(self, member: ModelTrajectory) -> bool:
        holder = self._workers.get(member.owner or 0)
        return holder is not None and holder[1] > time.monotonic()

    def _lease(self, member: ModelTrajectory, worker: Worker) -> Lease:
        member.owner, member.epoch = worker.id, member.epoch + 1
        return Lease(
            key=member.key,
            id=member.id,
            ordinal=member.ordinal,
            epoch=member.epoch,
            status=member.status,
            settled=False,
            next_seq=len(member.records),
        )

    # --- the log

    async def append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None:
        await self.append_together([(lease, records, status)], settled=settled)

    async def append_together(self, entries: Entries, *, settled: bool | None = None) -> None:
        for lease, _, _ in entries:
            if lease.broken is not None:
                raise lease.broken
        encoded = [[encode(record) for record in records] for _, records, _ in entries]
        try:
            for lease, _, _ in entries:
                self._check(lease)
        except JournalError as error:
            for lease, _, _ in entries:
                lease.broken = error
            raise
        for (lease, _, status), bodies in zip(entries, encoded, strict=True):
            member = self._trajectories[lease.id]
            member.records += bodies
            lease.next_seq += len(bodies)
            if status is not None:
                member.status = lease.status = status
            if settled:
                self._settled += 1
                member.settled, member.owner, lease.settled = self._settled, None, True
        if settled:
            self.changes.notify()

    def _check(self, lease: Lease) -> None:
        member = self._trajectories.get(lease.id)
        epoch = None if member is None else member.epoch
        if epoch != lease.epoch:
            raise LeaseLost(
                f"another worker has claimed {lease.key} (its epoch is {epoch}, ours "
                f"{lease.epoch}); nothing was written"
            )

    async def history(self, trajectory: int) -> list[Record]:
        return [decode(body) for body in self._trajectories[trajectory].records]

    async def summaries(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> AsyncIterator[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
        for row in await self.trajectories(run, ordinals=ordinals):
            records = await self.history(row.id)
            yield row, summarize(History(records, settled=row.settled))

    async def rewards(self, run: Run) -> list[tuple[str, float]]:
        return [
            (row.key.task, summary.reward)
            async for row, summary in self.summaries(run)
            if row.settled and not row.resting
            if isinstance(summary, Summary) and summary.reward is not None
        ]

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        for row in await self.trajectories(run):
            yield row, await self.history(row.id)

    async def cut(self, lease: Lease) -> Cut | None:
        self._check(lease)
        return None  # Memory does not tear.

    async def reopen(self, run: Run, *, reason: str) -> int:
        failed = [
            member
            for member in self._trajectories.values()
            if member.run == run.id
            and member.status is Status.FAILED
            and member.settled is not None
            and not self._is_delivered(run.id, member.ordinal)
        ]
        for member in failed:
            member.records.append(encode(Reopened(reason, time.time())))
            member.settled, member.status, member.epoch = None, Status.RUNNING, member.epoch + 1
            self._forget(member)
        return len(failed)

    async def rescore(self, run: Run, trajectories: Collection[int]) -> int:
        outcomes = [
            member
            for member in map(self._trajectories.get, trajectories)
            if member is not None
            and member.run == run.id
            and member.status.is_outcome
            and member.settled is not None
            and not self._is_delivered(run.id, member.ordinal)
        ]
        for member in outcomes:
            member.settled, member.epoch = None, member.epoch + 1
            self._forget(member)
        return len(outcomes)

    # --- blobs

    async def put_blob(self, body: bytes) -> bytes:
        digest = digest_of(body)
        self._blobs[digest] = bytes(body)
        return digest

    async def get_blob(self, digest: bytes) -> bytes:
        if digest not in self._blobs:
            raise JournalCorrupt(f"there is no blob {digest.hex()[:12]}")
        return self._blobs[digest]

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
        if consumer is not None:
            self._ledger(consumer)
        published = self._versions.setdefault(run.id, [])
        for version in published:
            if version.name == name:
                return known_version(run, name, digest, known=(version.ordinal, version.digest))
        published.append(WeightVersion(len(published) + 1, name, step, digest))
        return len(published)

    async def versions(self, run: Run, *, name: str | None = None) -> list[WeightVersion]:
        published = self._versions.get(run.id, [])
        return [version for version in published if name is None or version.name == name]

    # --- delivery

    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        check_consumer(name, lease_seconds)
        ledger = self._ledgers.setdefault((run.id, name), ConsumerLedger())
        return ledger.subscribe(run, name, identity, lease_seconds=lease_seconds)

    async def renew(self, consumer: Consumer) -> None:
        self._ledger(consumer)

    def _ledger(self, consumer: Consumer) -> ConsumerLedger:
        """Of a consumer that has not lost its lease."""
        ledger = self._ledgers.get((consumer.run.id, consumer.name))
        if ledger is None:
            raise lease_lost(consumer)
        ledger.renew(consumer)
        return ledger

    async def unsubscribe(self, consumer: Consumer) -> None:
        if ledger := self._ledgers.get((consumer.run.id, consumer.name)):
            ledger.unsubscribe(consumer)

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
        async def look() -> Batch:
            return self._batch(consumer, step, groups, before)

        return await look_until(
            look,
            lambda batch: bool(batch.groups) or batch.ended,
            changes=self.changes,
            wait=wait,
            poll=min(POLL_SECONDS, consumer.lease_seconds / 3),
        )

    def _batch(
        self, consumer: Consumer, step: int | None, groups: int, before: int | None
    ) -> Batch:
        ledger, run = self._ledger(consumer), consumer.run
        is_over = self._progress(run).is_over
        if is_over and before is not None:
            before = len(self._tasks[run.id])

        def unseen() -> list[ReadyGroup]:
            return self._unseen(run, ledger)

        if step is None:
            taken = ledger.take(groups, None, unseen=unseen, is_over=is_over)
        else:
            taken = ledger.step(
                consumer.name, step, groups, unseen=unseen, is_over=is_over, before=before
            )
        if taken is None:
            reserved = [] if step is None else ledger.in_step(step)
            missing = groups - len(reserved) - len(ledger.ready(groups, unseen, before))
            return Batch(consumer.name, step, (), missing=missing)
        members = tuple(
            tuple(self._row(member) for member in self._by_task[run.id, ordinal])
            for ordinal in taken
        )
        ended = is_over and not ledger.ready(1, unseen)
        return Batch(consumer.name, step, members, ended)

    def _unseen(self, run: Run, ledger: ConsumerLedger) -> list[ReadyGroup]:
        """Groups that became ready and that the consumer has not looked at, in their order."""
        policy = self._runs[run.id].spec.group
        ready_groups: list[ReadyGroup] = []
        for ordinal, task in enumerate(self._tasks[run.id]):
            place = self._place(run.id, ordinal)
            is_new = place is not None and place > ledger.seen and ordinal not in ledger.entries
            if place is not None and is_new and task.id in self._current[run.id]:
                members = self._by_task[run.id, ordinal]
                valid = valid_members([member.status for member in members])
                kept = valid > 0 and policy.keeps(valid, of=len(members))
                ready_groups.append(ReadyGroup(ordinal, place, kept))
        return sorted(ready_groups, key=lambda group: group.settled)

    def _place(self, run: int, ordinal: int) -> int | None:
        """Of a group in the order of settling; None while a member is open."""
        places = [member.settled for member in self._by_task[run, ordinal]]
        known = [place for place in places if place is not None]
        return max(known) if known and len(known) == len(places) else None

    def _named(self, run: Run, names: Iterable[str]) -> list[tuple[str, int]]:
        ordinals = {task.id: ordinal for ordinal, task in enumerate(self._tasks[run.id])}
        return [(name, ordinals.get(name, -1)) for name in names]

    async def dismiss(self, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
        check_reason(reason)
        self._ledger(consumer).dismiss(consumer, self._named(consumer.run, groups), reason)

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        check_step(step)
        ledger = self._ledger(consumer)
        ledger.commit(consumer, step, self._named(consumer.run, groups or ()))

    async def rewind(
        self, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
    ) -> int:
        check_step(step)
        steps = trained or {}
        named = [(name, ordinal, steps[name]) for name, ordinal in self._named(consumer.run, steps)]
        return self._ledger(consumer).rewind(consumer, step, named)

    async def consumers(self, run: Run) -> list[str]:
        return sorted(name for owner, name in self._ledgers if owner == run.id)

    async def ledger(self, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
        known = self._ledgers.get((run.id, consumer), ConsumerLedger())
        ledger_entries: list[LedgerEntry] = []
        for ordinal, task in enumerate(self._tasks[run.id][since:], since):
            is_had = ordinal in known.entries and known.entries[ordinal].is_had
            if task.id in self._current[run.id] or is_had:
                settled = self._place(run.id, ordinal) is not None
                end = known.end_of(ordinal, settled=settled)
                ledger_entries.append(LedgerEntry(task.id, ordinal, *end))
        return ledger_entries

    async def close(self) -> None:
        """Nothing to do: there is no file."""
