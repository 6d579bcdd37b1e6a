"""A journal that keeps everything in memory: for tests, notebooks and runs that may be lost.

The same promises as any other except durability, and the same conformance suite. It is also the
model that the SQLite one is compared with.
"""

import time
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from holdfast.journal.journal import (
    Batch,
    Claim,
    Cut,
    Lease,
    RunRow,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
    digest_of,
)
from holdfast.journal.process import is_gone
from holdfast.records.codec import decode, encode
from holdfast.records.errors import JournalCorrupt, JournalError, LeaseLost, RunHeld, UsageError
from holdfast.records.group import valid_members
from holdfast.records.run import Run, RunChange, RunSpec
from holdfast.records.step import Record, Reopened
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey


class _Trajectory(Struct):
    id: int
    run: int
    ordinal: int
    key: TrajectoryKey
    records: list[bytes]
    status: Status = Status.PENDING
    epoch: int = 0
    owner: int | None = None
    settled: int | None = None


class MemoryJournal:
    """See `Journal`. Closing it forgets nothing; dropping it does."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._tasks: dict[int, list[Task]] = {}
        self._current: dict[int, set[str]] = {}
        self._trajectories: dict[int, _Trajectory] = {}
        self._by_task: dict[tuple[int, int], list[_Trajectory]] = {}
        self._workers: dict[int, tuple[Worker, float]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._deliveries: dict[tuple[int, str], dict[int, list[int]]] = {}
        self._committed: dict[tuple[int, str], int] = {}
        self._cursors: dict[int, int] = {}
        self._settled = 0
        self._worker_ids = 0

    # --- runs

    async def create_run(self, spec: RunSpec, tasks: Sequence[Task]) -> Run:
        if await self.find_run(spec.name) is not None:
            raise UsageError(f"run {spec.name!r} exists already")
        run = Run(id=len(self._runs) + 1, spec=spec, changes=(), created=time.time())
        self._runs[run.id] = run
        self._tasks[run.id] = []
        self._plan(run, tasks)
        return run

    async def find_run(self, name: str) -> Run | None:
        return next((run for run in self._runs.values() if run.spec.name == name), None)

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        changes = (*run.changes, RunChange(tuple(differences), time.time()))
        amended = Run(id=run.id, spec=spec, changes=changes, created=run.created)
        self._runs[run.id] = amended
        self._plan(amended, tasks)
        if spec.scorer and spec.scorer != run.spec.scorer:
            self._unsettle_outcomes(run.id)
        return amended

    def _unsettle_outcomes(self, run: int) -> None:
        for one in self._trajectories.values():
            if (
                one.run == run
                and one.status.is_outcome
                and one.settled is not None
                and not self._is_delivered(run, one.ordinal)
            ):
                one.settled, one.epoch = None, one.epoch + 1

    def _plan(self, run: Run, tasks: Sequence[Task]) -> None:
        known = {task.id: ordinal for ordinal, task in enumerate(self._tasks[run.id])}
        self._current[run.id] = {task.id for task in tasks}
        for task in sorted(tasks, key=lambda task: task.id not in known):
            ordinal = known.get(task.id, len(self._tasks[run.id]))
            if task.id in known:
                self._tasks[run.id][ordinal] = task
            else:
                self._tasks[run.id].append(task)
            members = self._by_task.setdefault((run.id, ordinal), [])
            if self._is_delivered(run.id, ordinal):
                continue
            for sample in range(len(members), run.spec.samples):
                key = TrajectoryKey(run.spec.name, task.id, sample)
                made = _Trajectory(len(self._trajectories) + 1, run.id, ordinal, key, [])
                self._trajectories[made.id] = made
                members.append(made)

    async def runs(self) -> list[RunRow]:
        return [self._run_row(run) for run in self._runs.values()]

    def _run_row(self, run: Run) -> RunRow:
        current = self._current[run.id]
        mine = [
            one
            for one in self._trajectories.values()
            if one.run == run.id and one.key.task in current
        ]
        by_status: dict[str, int] = {}
        for one in sorted(mine, key=lambda one: one.status):
            by_status[one.status.name] = by_status.get(one.status.name, 0) + 1
        return RunRow(
            name=run.spec.name,
            created=run.created,
            tasks=len(current),
            samples=run.spec.samples,
            by_status=by_status,
            settled=sum(one.settled is not None for one in mine),
            live_workers=tuple(
                str(worker.identity)
                for worker, until in self._workers.values()
                if worker.run == run.id
                and until > time.monotonic()
                and not is_gone(worker.identity)
            ),
        )

    async def tasks(self, run: Run) -> list[Task]:
        return list(self._tasks[run.id])

    async def trajectories(self, run: Run) -> list[TrajectoryRow]:
        return [
            self._row(one)
            for ordinal in range(len(self._tasks[run.id]))
            for one in self._by_task[run.id, ordinal]
        ]

    def _row(self, one: _Trajectory) -> TrajectoryRow:
        owner = self._workers.get(one.owner or 0)
        return TrajectoryRow(
            key=one.key,
            id=one.id,
            ordinal=one.ordinal,
            status=one.status,
            settled=one.settled is not None,
            epoch=one.epoch,
            records=len(one.records),
            owner=str(owner[0].identity) if owner else "",
            resting=one.key.task not in self._current[one.run],
        )

    # --- workers and leases

    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        living = []
        for worker, until in list(self._workers.values()):
            if worker.run != run.id:
                continue
            if until > time.monotonic() and not is_gone(worker.identity):
                living.append(str(worker.identity))
            else:
                await self.leave(worker)
        if living and not share:
            raise RunHeld(
                f"run {run.spec.name!r} is being worked on by {', '.join(living)}; wait for it, "
                "stop it, or add --join to share the work"
            )
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
        for one in self._trajectories.values():
            if one.owner == worker.id:
                one.owner, one.epoch = None, one.epoch + 1
        self._workers.pop(worker.id, None)

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
            claimable = [one for one in members if one.settled is None]
            if not claimable or task.id not in self._current[worker.run]:
                continue
            if any(self._is_held(one) for one in claimable):
                continue
            settled = [self._row(one) for one in members if one.settled is not None]
            leases = [self._lease(one, worker) for one in claimable]
            claims.append(Claim(task, ordinal, leases, settled))
        return claims

    def _is_held(self, one: _Trajectory) -> bool:
        holder = self._workers.get(one.owner or 0)
        return holder is not None and holder[1] > time.monotonic()

    def _lease(self, one: _Trajectory, worker: Worker) -> Lease:
        one.owner, one.epoch = worker.id, one.epoch + 1
        return Lease(
            key=one.key,
            id=one.id,
            ordinal=one.ordinal,
            epoch=one.epoch,
            status=one.status,
            settled=False,
            next_seq=len(one.records),
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

    async def append_together(
        self,
        entries: Sequence[tuple[Lease, Sequence[Record], Status | None]],
        *,
        settled: bool | None = None,
    ) -> None:
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
            one = self._trajectories[lease.id]
            one.records += bodies
            lease.next_seq += len(bodies)
            if status is not None:
                one.status = lease.status = status
            if settled:
                self._settled += 1
                one.settled, one.owner, lease.settled = self._settled, None, True

    def _check(self, lease: Lease) -> None:
        one = self._trajectories[lease.id]
        if one.epoch != lease.epoch:
            raise LeaseLost(
                f"another worker has claimed {lease.key} (its epoch is {one.epoch}, ours "
                f"{lease.epoch}); nothing was written"
            )

    async def history(self, trajectory: int) -> list[Record]:
        return [decode(body) for body in self._trajectories[trajectory].records]

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        for row in await self.trajectories(run):
            yield row, await self.history(row.id)

    async def cut(self, lease: Lease) -> Cut | None:
        self._check(lease)
        return None  # Memory does not tear.

    async def reopen(self, run: Run, *, reason: str) -> int:
        failed = [
            one
            for one in self._trajectories.values()
            if one.run == run.id
            and one.status is Status.FAILED
            and one.settled is not None
            and not self._is_delivered(run.id, one.ordinal)
        ]
        for one in failed:
            one.records.append(encode(Reopened(reason, time.time())))
            one.settled, one.status, one.epoch = None, Status.RUNNING, one.epoch + 1
        return len(failed)

    # --- blobs

    async def put_blob(self, body: bytes) -> bytes:
        digest = digest_of(body)
        self._blobs[digest] = bytes(body)
        return digest

    async def get_blob(self, digest: bytes) -> bytes:
        if digest not in self._blobs:
            raise JournalCorrupt(f"there is no blob {digest.hex()[:12]}")
        return self._blobs[digest]

    # --- delivery

    async def next_batch(self, run: Run, consumer: str, step: int, *, groups: int) -> Batch:
        taken = self._deliveries.setdefault((run.id, consumer), {})
        if step not in taken:
            committed = self._committed.get((run.id, consumer))
            last = max([*taken, *([] if committed is None else [committed])], default=None)
            if last is not None and step <= last:
                raise UsageError(
                    f"consumer {consumer!r} is at step {last}; step {step} got an empty batch or "
                    "is in the past. Ask for a later step, or rewind first"
                )
            ready = self._ready(run, taken)[:groups]
            if ready:
                taken[step] = ready
        return Batch(
            consumer,
            step,
            tuple(
                tuple(self._row(one) for one in self._by_task[run.id, ordinal])
                for ordinal in taken.get(step, [])
            ),
        )

    def _ready(self, run: Run, taken: dict[int, list[int]]) -> list[int]:
        gone = {ordinal for ordinals in taken.values() for ordinal in ordinals}
        ready: list[tuple[int, int]] = []
        for ordinal in range(len(self._tasks[run.id])):
            members = self._by_task[run.id, ordinal]
            places = [one.settled for one in members if one.settled is not None]
            valid = valid_members([one.status for one in members])
            if (
                ordinal not in gone
                and self._tasks[run.id][ordinal].id in self._current[run.id]
                and len(places) == len(members)
                and valid
                and run.spec.group.keeps(valid, of=len(members))
            ):
                ready.append((max(places), ordinal))
        return [ordinal for _, ordinal in sorted(ready)]

    def _is_delivered(self, run: int, ordinal: int) -> bool:
        return any(
            ordinal in ordinals
            for (owner, _), taken in self._deliveries.items()
            if owner == run
            for ordinals in taken.values()
        )

    async def commit(self, run: Run, consumer: str, step: int) -> None:
        known = self._committed.get((run.id, consumer), step)
        self._committed[run.id, consumer] = max(known, step)

    async def rewind(self, run: Run, consumer: str, step: int) -> int:
        if (run.id, consumer) in self._committed:
            known = self._committed[run.id, consumer]
            self._committed[run.id, consumer] = min(known, step)
        taken = self._deliveries.get((run.id, consumer), {})
        later = [one for one in taken if one > step]
        return sum(len(taken.pop(one)) for one in later)

    async def close(self) -> None:
        """Nothing to do: there is no file."""
