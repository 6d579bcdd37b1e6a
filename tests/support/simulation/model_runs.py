"""Runs, their tasks and trajectories in memory: the model of `sqlite.runs`."""

import time
from collections.abc import Collection, Sequence

from msgspec import Struct, structs

from holdfast.journal.changes import Changes
from holdfast.journal.lease_clock import with_lease_end
from holdfast.journal.process import is_gone
from holdfast.journal.references import reachable
from holdfast.journal.rules import (
    amended_spec,
    blobs_in_use,
    check_size,
    check_tags,
    consumed_run,
    distinct,
    journal_in_use,
    name_taken,
    run_in_use,
    run_sealed,
    tasks_scored_anew,
)
from holdfast.journal.types import Deletion, RunProgress, RunRow, TrajectoryRow, Worker
from holdfast.records.errors import UsageError
from holdfast.records.run import RecordedCommand, Run, RunChange, RunSpec
from holdfast.records.samples.version import WeightVersion
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey
from support.simulation.model_ledger import ConsumerLedger


class ModelTrajectory(Struct):
    """One trajectory and its log."""

    id: int
    run: int
    ordinal: int
    key: TrajectoryKey
    records: list[bytes]
    status: Status = Status.PENDING
    epoch: int = 0
    owner: int | None = None
    settled: int | None = None


class ModelRuns:
    """The part of a journal in memory that knows runs, and everything that they have."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._tasks: dict[int, list[Task]] = {}
        self._current: dict[int, set[str]] = {}
        self._trajectories: dict[int, ModelTrajectory] = {}
        self._by_task: dict[tuple[int, int], list[ModelTrajectory]] = {}
        self._workers: dict[int, tuple[Worker, float]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._streams: set[int] = set()
        self._versions: dict[int, list[WeightVersion]] = {}
        self._ledgers: dict[tuple[int, str], ConsumerLedger] = {}
        self.changes = Changes()
        self._cursors: dict[int, int] = {}
        self._settled = 0
        self._worker_ids = self._run_ids = self._trajectory_ids = 0
        """The last that was used: none is used again."""

    # --- runs

    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        if await self.find_run(spec.name) is not None:
            raise name_taken(spec.name)
        self._run_ids += 1
        run = Run(id=self._run_ids, spec=spec, changes=(), created=time.time())
        self._runs[run.id] = run
        self._tasks[run.id] = []
        self._current[run.id] = set()
        self._plan(run, tasks)
        if not sealed:
            self._streams.add(run.id)
        return run

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        known = {task.id: task for task in self._tasks[run.id]}
        distinct(run, [known[task.id] for task in tasks if task.id in known] + list(tasks))
        fresh = distinct(run, [task for task in tasks if task.id not in known])
        if fresh and run.id not in self._streams:
            raise run_sealed(run, fresh[0].id)
        check_size(run, planned=self._progress(run).planned, more=len(fresh))
        self._plan(run, fresh)
        self.changes.notify()
        return len(fresh)

    async def seal(self, run: Run) -> None:
        self._streams.discard(run.id)
        self.changes.notify()

    async def unseal(self, run: Run) -> None:
        self._streams.add(run.id)
        self.changes.notify()

    async def progress(self, run: Run) -> RunProgress:
        return self._progress(run)

    def _progress(self, run: Run) -> RunProgress:
        mine = self._current_members(run.id)
        settled = [member for member in mine if member.settled is not None]
        return RunProgress(
            planned=len(mine),
            settled=len(settled),
            failed=sum(member.status is Status.FAILED for member in settled),
            sealed=run.id not in self._streams,
        )

    def _current_members(self, run: int) -> list[ModelTrajectory]:
        current = self._current[run]
        return [
            member
            for member in self._trajectories.values()
            if member.run == run and member.key.task in current
        ]

    async def find_run(self, name: str) -> Run | None:
        return next((run for run in self._runs.values() if run.spec.name == name), None)

    async def find_series(self, name: str) -> list[Run]:
        return [run for run in self._runs.values() if run.spec.series == name]

    async def share(self, run: Run, others: Sequence[Run]) -> list[Run]:
        raise NotImplementedError("no run of the simulation is in a series")

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        changes = (*run.changes, RunChange(tuple(differences), time.time()))
        recorded = self._current_run(run).spec
        before = {task.id: task for task in self._tasks[run.id]}
        held = await self.held_groups(run)
        anew = tasks_scored_anew(recorded, spec, before, tasks, held=held)
        spec = amended_spec(recorded, spec)
        amended = Run(id=run.id, spec=spec, changes=changes, created=run.created)
        self._runs[run.id] = amended
        self._current[run.id] = set()
        self._plan(amended, tasks)
        self._unsettle_outcomes(run.id, anew)
        for (owner, _), ledger in self._ledgers.items():
            if owner == run.id:
                ledger.look_anew()
        return amended

    async def annotate_run(
        self,
        run: Run,
        *,
        tags: Sequence[str] | None = None,
        command: RecordedCommand | None = None,
        training: str | None = None,
    ) -> Run:
        spec = self._current_run(run).spec
        kept = spec.tags if tags is None else check_tags(tags)
        command, training = command or spec.command, training or spec.training
        return self._with_spec(
            run, structs.replace(spec, tags=kept, command=command, training=training)
        )

    async def rename_run(self, run: Run, name: str) -> Run:
        self._refuse_if_held(run)
        spec = structs.replace(self._current_run(run).spec, name=name)
        spec.check(tasks=0)
        if name != run.spec.name and await self.find_run(name) is not None:
            raise name_taken(name)
        for member in self._of_run(run.id):
            member.key = TrajectoryKey(name, member.key.task, member.key.sample)
        return self._with_spec(run, spec)

    def _current_run(self, run: Run) -> Run:
        if run.id not in self._runs:
            raise UsageError(f"run {run.spec.name!r} is no longer in the journal: it was deleted")
        return self._runs[run.id]

    def _with_spec(self, run: Run, spec: RunSpec) -> Run:
        self._runs[run.id] = structs.replace(self._runs[run.id], spec=spec)
        return self._runs[run.id]

    async def delete_run(self, run: Run) -> Deletion:
        if run.id not in self._runs:
            return Deletion()
        self._refuse_if_held(run)
        gone = self._of_run(run.id)
        kept = [each for each in self._trajectories.values() if each.run != run.id]
        used = self._blobs_of(gone)
        unused = used - self._blobs_of(kept) if used else used
        others = [self._runs[worker.run].spec.name for worker in self._live_workers()]
        if unused and others:
            raise blobs_in_use(run, others)
        self._trajectories = {member.id: member for member in kept}
        self._blobs = {key: body for key, body in self._blobs.items() if key not in unused}
        for table in (self._runs, self._tasks, self._current, self._versions):
            table.pop(run.id, None)
        for pairs in (self._by_task, self._ledgers):
            for key in [key for key in pairs if key[0] == run.id]:
                del pairs[key]  # type: ignore[arg-type]
        self._streams.discard(run.id)
        return Deletion(len(gone), sum(len(member.records) for member in gone), len(unused))

    async def compact(self) -> int:
        """Memory is given back by itself."""
        if live := self._live_workers():
            raise journal_in_use([self._runs[worker.run].spec.name for worker in live])
        return 0

    def _of_run(self, run: int) -> list[ModelTrajectory]:
        return [member for member in self._trajectories.values() if member.run == run]

    def _blobs_of(self, members: list[ModelTrajectory]) -> set[bytes]:
        bodies = (body for member in members for body in member.records)
        return reachable(bodies, self._blobs.get, among=set(self._blobs))

    def _live_workers(self) -> list[Worker]:
        return [
            worker
            for worker, until in self._workers.values()
            if until > time.monotonic() and not is_gone(worker.identity)
        ]

    def _refuse_if_held(self, run: Run) -> None:
        """Whoever is dead holds nothing any more, and is forgotten."""
        live = [worker for worker in self._live_workers() if worker.run == run.id]
        if live:
            ends = {worker.id: until for worker, until in self._workers.values()}
            now = time.monotonic()
            raise run_in_use(run, [with_lease_end(w.identity, ends[w.id] - now) for w in live])
        for (owner, name), ledger in self._ledgers.items():
            if owner == run.id and (holder := ledger.live_holder()):
                seconds = ledger.until - time.monotonic()
                raise consumed_run(run, name, holder=str(holder), seconds=seconds)
        self._workers = {key: pair for key, pair in self._workers.items() if pair[0].run != run.id}

    def _unsettle_outcomes(self, run: int, tasks: Collection[str]) -> None:
        for member in self._of_run(run):
            if member.key.task not in tasks:
                continue
            if member.status.is_outcome and member.settled is not None:
                member.settled, member.epoch = None, member.epoch + 1
                self._forget(member)

    def _forget(self, member: ModelTrajectory) -> None:
        """Its group is open again."""
        for (run, _), ledger in self._ledgers.items():
            if run == member.run:
                ledger.forget(member.ordinal)

    def _plan(self, run: Run, tasks: Sequence[Task]) -> None:
        known = {task.id: ordinal for ordinal, task in enumerate(self._tasks[run.id])}
        self._current[run.id] |= {task.id for task in tasks}
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
                self._trajectory_ids += 1
                made = ModelTrajectory(self._trajectory_ids, run.id, ordinal, key, [])
                self._trajectories[made.id] = made
                members.append(made)

    async def runs(self) -> list[RunRow]:
        return [self._run_row(run) for run in self._runs.values()]

    def _run_row(self, run: Run) -> RunRow:
        mine = self._current_members(run.id)
        by_status: dict[str, int] = {}
        for member in sorted(mine, key=lambda member: member.status):
            by_status[member.status.name] = by_status.get(member.status.name, 0) + 1
        return RunRow(
            name=run.spec.name,
            created=run.created,
            tasks=len(self._current[run.id]),
            samples=run.spec.samples,
            by_status=by_status,
            settled=sum(member.settled is not None for member in mine),
            sealed=run.id not in self._streams,
            live_workers=tuple(
                str(worker.identity)
                for worker, until in self._workers.values()
                if worker.run == run.id
                and until > time.monotonic()
                and not is_gone(worker.identity)
            ),
        )

    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        tasks = self._tasks[run.id]
        if ordinals is None:
            return list(tasks)
        for ordinal in ordinals:
            if not 0 <= ordinal < len(tasks):
                raise UsageError(f"run {run.spec.name!r} has no task number {ordinal}")
        return [tasks[ordinal] for ordinal in ordinals]

    async def trajectories(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> list[TrajectoryRow]:
        known = range(len(self._tasks[run.id]))
        wanted = known if ordinals is None else sorted({n for n in ordinals if n in known})
        return [
            self._row(member) for ordinal in wanted for member in self._by_task[run.id, ordinal]
        ]

    def _row(self, member: ModelTrajectory) -> TrajectoryRow:
        owner = self._workers.get(member.owner or 0)
        return TrajectoryRow(
            key=member.key,
            id=member.id,
            ordinal=member.ordinal,
            status=member.status,
            settled=member.settled is not None,
            epoch=member.epoch,
            records=len(member.records),
            owner=str(owner[0].identity) if owner else "",
            resting=member.key.task not in self._current[member.run],
        )

    async def held_groups(self, run: Run) -> dict[str, list[str]]:
        results = {
            name: sorted(number for number, entry in ledger.entries.items() if entry.is_had)
            for (owner, name), ledger in sorted(self._ledgers.items())
            if owner == run.id
        }
        tasks = self._tasks[run.id]
        return {name: [tasks[number].id for number in had] for name, had in results.items() if had}

    def _is_delivered(self, run: int, ordinal: int) -> bool:
        return any(
            owner == run and ordinal in ledger.entries and ledger.entries[ordinal].is_had
            for (owner, _), ledger in self._ledgers.items()
        )
