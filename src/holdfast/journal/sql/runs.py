"""Runs, their tasks and trajectories, streams and weight versions.

A change of a whole run locks the run's row. Two such changes, or a change and a delivery, therefore
happen one after the other.
"""

import secrets
from collections.abc import Collection, Sequence

import msgspec
from msgspec import structs

from holdfast.journal import rules
from holdfast.journal.lease_clock import IS_LEASED
from holdfast.journal.process import is_gone
from holdfast.journal.rows import summary_of_row, task_body, task_of
from holdfast.journal.sql.groups import recount, recount_totals, reopen
from holdfast.journal.sql.store import Row, Store, values_of
from holdfast.journal.types import RunProgress, RunRow, TrajectoryRow, WorkerIdentity
from holdfast.records.errors import JournalCorrupt, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import RecordedCommand, Run, RunChange, RunSpec
from holdfast.records.samples.summary import Summary
from holdfast.records.samples.version import WeightVersion
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey

OUTCOMES = [int(Status.COMPLETED), int(Status.TRUNCATED)]
_RUN = "SELECT name, id, spec, changes, created FROM runs"
_encode = msgspec.msgpack.encode


def create(store: Store, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
    """Creates a run and plans every sample of every task. With `sealed=False`, the run accepts more
    tasks later."""
    if find(store, spec.name) is not None:
        raise rules.name_taken(spec.name)
    if spec.series:
        spec = structs.replace(spec, lineage=(secrets.token_hex(8),))
    store.run(
        "INSERT INTO runs(name, spec, changes, created) VALUES (:name, :spec, :changes, :created) "
        "ON CONFLICT(name) DO NOTHING",
        name=spec.name,
        spec=_encode(spec),
        changes=_encode(()),
        created=store.now().wall,
    )
    run = find(store, spec.name)
    if run is None or _has_tasks(store, run):  # Another process has created it.
        raise rules.name_taken(spec.name)
    store.run("INSERT INTO totals(run) VALUES (:run)", run=run.id)
    if not sealed:
        unseal(store, run)
    _plan(store, run.id, spec.samples, list(enumerate(tasks)))
    return run


def _has_tasks(store: Store, run: Run) -> bool:
    return store.row("SELECT 1 FROM totals WHERE run = :run", run=run.id) is not None


def find(store: Store, name: str) -> Run | None:
    row = store.row(f"{_RUN} WHERE name = :name", name=name)
    return None if row is None else run_of(row)


def find_series(store: Store, name: str) -> list[Run]:
    """Returns the runs of a series, the oldest first."""
    every = map(run_of, store.rows(f"{_RUN} ORDER BY id"))
    return [run for run in every if run.spec.series == name]


def by_id(store: Store, number: int) -> Run:
    """Returns a run by its number. The run must exist, for example because somebody holds it."""
    [row] = store.rows(f"{_RUN} WHERE id = :run", run=number)
    return run_of(row)


def run_of(row: Row) -> Run:
    name, identity, spec, changes, created = row
    text_of(name, of="the name of a run")
    try:
        run = Run(
            id=identity,
            spec=msgspec.msgpack.decode(spec, type=RunSpec),
            changes=msgspec.msgpack.decode(changes, type=tuple[RunChange, ...]),
            created=float(created),
        )
    except (ValueError, TypeError) as error:  # Any damage counts, including text that is not UTF-8.
        raise JournalCorrupt(f"run {name!r}: its description does not decode: {error}") from error
    if run.spec.name != name:
        raise JournalCorrupt(f"run {name!r}: its description is of run {run.spec.name!r}")
    return run


def lock(store: Store, run: Run, how: str = "UPDATE") -> Run:
    """Locks the run until the transaction ends, and returns it as it is recorded now. Raises
    `UsageError` if the run was deleted."""
    row = store.row(f"{_RUN} WHERE id = :run FOR {how}", run=run.id)
    if row is None:
        raise UsageError(f"run {run.spec.name!r} is no longer in the journal: it was deleted")
    return run_of(row)


def policy_of(store: Store, run: Run) -> GroupPolicy:
    """Returns the run's present group policy, which may have been amended."""
    return lock(store, run, "SHARE").spec.group


def amend(
    store: Store, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
) -> Run:
    """Replaces the run's spec and tasks in one step. The journal plans tasks that are new. Recorded
    tasks that are missing in `tasks` rest: they are kept, but not worked on.

    If the scorer changes, settled outcomes are opened again, so that the new scorer scores them and
    no run mixes rewards of two scorers. If the content of a task changes, the outcomes of that task
    are opened again. Groups that a consumer has (`held_groups`) keep their rewards. A change that
    would score such a group again raises `UsageError`.
    """
    recorded = lock(store, run).spec
    before = {task.id: task for task in tasks_of(store, run)}
    known = {name: ordinal for ordinal, name in enumerate(before)}
    anew = rules.tasks_scored_anew(recorded, spec, before, tasks, held=held_groups(store, run))
    spec = rules.amended_spec(recorded, spec)
    changes = (*run.changes, RunChange(tuple(differences), store.now().wall))
    store.run(
        "UPDATE runs SET spec = :spec, changes = :changes WHERE id = :run",
        run=run.id,
        spec=_encode(spec),
        changes=_encode(changes),
    )
    for table in ("tasks", "task_groups"):
        store.run(f"UPDATE {table} SET current = false WHERE run = :run", run=run.id)  # noqa: S608 - ours
    fresh = [task for task in tasks if task.id not in known]
    planned = [(known[task.id], task) for task in tasks if task.id in known]
    planned += list(enumerate(fresh, max(known.values(), default=-1) + 1))
    _plan(store, run.id, spec.samples, planned)
    _unsettle_outcomes(store, run.id, [known[name] for name in anew])
    # The new policy may keep dismissed groups, and groups may have grown.
    store.run("DELETE FROM deliveries WHERE run = :run AND state = 3", run=run.id)
    store.run("UPDATE consumers SET seen = 0 WHERE run = :run", run=run.id)
    recount_totals(store, run.id)
    store.notify(run.id, "work")
    return Run(id=run.id, spec=spec, changes=changes, created=run.created)


def annotate(
    store: Store,
    run: Run,
    *,
    tags: Sequence[str] | None = None,
    command: RecordedCommand | None = None,
    training: str | None = None,
) -> Run:
    """Replaces a run's tags, recorded command or training settings, even while other processes work
    on the run. None keeps the old value. `amend_run` keeps the tags and the training settings, and
    the command if the new spec has none."""
    recorded = lock(store, run)
    spec = structs.replace(
        recorded.spec,
        tags=recorded.spec.tags if tags is None else rules.check_tags(tags),
        command=command or recorded.spec.command,
        training=training or recorded.spec.training,
    )
    store.run("UPDATE runs SET spec = :spec WHERE id = :run", run=run.id, spec=_encode(spec))
    return structs.replace(recorded, spec=spec)


def rename(store: Store, run: Run, name: str) -> Run:
    """Renames the run. Changes only the run's own row, because no other row contains the name.
    Raises `UsageError` if the name is taken."""
    recorded = lock(store, run)
    spec = structs.replace(recorded.spec, name=name)
    spec.check(tasks=0)
    renamed = store.run(
        "UPDATE runs SET name = :name, spec = :spec WHERE id = :run "
        "AND NOT EXISTS (SELECT 1 FROM runs WHERE name = :name AND id <> :run)",
        run=run.id,
        name=name,
        spec=_encode(spec),
    )
    if not renamed:
        raise rules.name_taken(name)
    return structs.replace(recorded, spec=spec)


def held_groups(store: Store, run: Run) -> dict[str, list[str]]:
    """Returns the groups that each consumer has taken or dismissed, named by their tasks and in
    their order. Such groups keep their members and rewards. Consumers without groups are left
    out."""
    held: dict[str, list[str]] = {}
    for consumer, ordinal, task in store.rows(
        "SELECT d.consumer, d.task, k.id FROM deliveries d "
        "JOIN tasks k ON k.run = d.run AND k.ordinal = d.task "
        "WHERE d.run = :run AND d.state IN (1, 2) ORDER BY d.consumer, d.task",
        run=run.id,
    ):
        name = text_of(consumer, of="the name of a consumer")
        held.setdefault(name, []).append(text_of(task, of=f"the name of task {ordinal}"))
    return held


# --- scoring anew


def _unsettle_outcomes(store: Store, run: int, tasks: Sequence[int]) -> None:
    """Opens outcomes of these tasks again for scoring, without sampling them again. No consumer may
    have such a group."""
    rows = store.rows(
        "UPDATE trajectories SET settled = NULL, epoch = epoch + 1 WHERE run = :run "
        "AND task = ANY(:tasks) AND status = ANY(:outcomes) AND settled IS NOT NULL RETURNING task",
        run=run,
        tasks=list(tasks),
        outcomes=OUTCOMES,
    )
    reopen(store, run, values_of(rows))


def rescore(store: Store, run: Run, trajectories: Collection[int]) -> int:
    """Opens settled outcomes among these trajectories again, so that they are scored again. Their
    records stay. Skips groups that a consumer has. Returns the number of opened trajectories."""
    lock(store, run)
    rows = store.rows(
        "UPDATE trajectories SET settled = NULL, epoch = epoch + 1 WHERE run = :run "
        "AND id = ANY(:ids) AND status = ANY(:outcomes) AND settled IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM deliveries d WHERE d.run = :run AND d.task = trajectories.task "
        "AND d.state IN (1, 2)) RETURNING task",
        run=run.id,
        ids=list(trajectories),
        outcomes=OUTCOMES,
    )
    reopen(store, run.id, values_of(rows))
    if rows:
        store.notify(run.id, "work")
    return len(rows)


# --- planning


def _plan(store: Store, run: int, samples: int, tasks: Sequence[tuple[int, Task]]) -> None:
    store.insert(
        "tasks",
        "run, ordinal, id, body, crc",
        [(run, ordinal, task.id, *task_body(task, ordinal)) for ordinal, task in tasks],
        conflict="(run, ordinal) DO UPDATE SET body = excluded.body, crc = excluded.crc, "
        "current = true",
    )
    store.insert(
        "task_groups",
        "run, task",
        [(run, ordinal) for ordinal, _ in tasks],
        conflict="(run, task) DO UPDATE SET current = true",
    )
    # A group that a consumer has gets no new members, so its batch stays the same.
    planned = [ordinal for ordinal, _ in tasks]
    held = store.rows(
        "SELECT task FROM deliveries WHERE run = :run AND task = ANY(:tasks) AND state IN (1, 2)",
        run=run,
        tasks=planned,
    )
    growing = set(planned) - set(values_of(held))
    there = store.rows(
        "SELECT task, sample FROM trajectories WHERE run = :run AND task = ANY(:tasks)",
        run=run,
        tasks=planned,
    )
    wanted = [(ordinal, sample) for ordinal in planned for sample in range(samples)]
    known = set(there)
    new = [each for each in wanted if each[0] in growing and each not in known]
    store.insert("trajectories", "run, task, sample", [(run, *each) for each in new])
    recount(store, run, growing)


def admit(store: Store, run: Run, tasks: Sequence[Task]) -> int:
    """Adds tasks to a run that is not sealed, even while workers work on it. Returns the number of
    new tasks.

    Tasks that the run already has are skipped, so that the call can be repeated after a kill.
    Raises `UsageError` if a known id has other content, or if the run is sealed and a task is new.
    Adds all tasks or none.
    """
    lock(store, run)
    known = _known(store, run, tasks)
    for task in tasks:
        if task.id in known and known[task.id] != _encode(task):
            raise rules.other_task(run, task.id)
    fresh = rules.distinct(run, [task for task in tasks if task.id not in known])
    if not fresh:
        return 0
    now = progress(store, run)
    if now.sealed:
        raise rules.run_sealed(run, fresh[0].id)
    rules.check_size(run, planned=now.planned, more=len(fresh))
    _plan(store, run.id, run.spec.samples, list(enumerate(fresh, count_tasks(store, run))))
    store.notify(run.id, "work")
    return len(fresh)


def count_tasks(store: Store, run: Run) -> int:
    """Returns the number of all tasks, which is the ordinal of the next task."""
    query = "SELECT coalesce(max(ordinal), -1) + 1 FROM tasks WHERE run = :run"
    [(number,)] = store.rows(query, run=run.id)
    return int(number)


def _known(store: Store, run: Run, tasks: Sequence[Task]) -> dict[str, bytes]:
    rows = store.rows(
        "SELECT id, body FROM tasks WHERE run = :run AND id = ANY(:names)",
        run=run.id,
        names=list({task.id for task in tasks}),
    )
    return dict(rows)


def seal(store: Store, run: Run) -> None:
    """Ends the admission of tasks. Sealing a sealed run does nothing."""
    lock(store, run)
    store.run("DELETE FROM streams WHERE run = :run", run=run.id)
    store.notify(run.id, "work", "ready")


def unseal(store: Store, run: Run) -> None:
    """Opens a sealed run to more tasks, for a training that continues after its last step.
    Consumers that have seen the end of the run are not notified."""
    store.run("INSERT INTO streams VALUES (:run) ON CONFLICT(run) DO NOTHING", run=run.id)


def progress(store: Store, run: Run) -> RunProgress:
    row = store.row(
        "SELECT planned, settled, failed, NOT EXISTS (SELECT 1 FROM streams WHERE run = :run) "
        "FROM totals WHERE run = :run",
        run=run.id,
    )
    planned, settled, failed, sealed = row or (0, 0, 0, True)
    return RunProgress(planned, settled, failed, sealed=bool(sealed))


# --- weight versions


def versions(store: Store, run: Run, *, name: str | None = None) -> list[WeightVersion]:
    """Returns the versions in their order. With `name`, reads and returns only the version of that
    name."""
    where = "" if name is None else " AND name = :name"
    rows = store.rows(
        f"SELECT ordinal, name, step, digest FROM versions WHERE run = :run{where} "  # noqa: S608 - ours
        "ORDER BY ordinal",
        run=run.id,
        name=name,
    )
    return [WeightVersion(*row) for row in rows]


# --- tasks


def text_of(value: object, *, of: str) -> str:
    """Returns the value if it is valid text. Raises `JournalCorrupt` if damage changed it. Error
    messages call the value by the name in `of`."""
    if not isinstance(value, str):
        raise JournalCorrupt(f"{of} is not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise JournalCorrupt(f"{of} is not text: {error}") from error
    return value


_ALL_TASKS = "SELECT ordinal, id, body, crc FROM tasks WHERE run = :run ORDER BY ordinal"
SOME_TASKS = "SELECT ordinal, id, body, crc FROM tasks WHERE run = :run AND ordinal = ANY(:tasks)"


def tasks_of(store: Store, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
    """Returns the run's tasks in their order. With `ordinals`, returns the tasks with these
    ordinals, in the order of `ordinals`. Raises `UsageError` for an ordinal without a task."""
    if ordinals is None:
        return [task_of(*row) for row in store.rows(_ALL_TASKS, run=run.id)]
    rows = store.rows(SOME_TASKS, run=run.id, tasks=_possible(ordinals))
    by_ordinal = {row[0]: row for row in rows}
    for ordinal in ordinals:
        if ordinal not in by_ordinal:
            raise UsageError(f"run {run.spec.name!r} has no task number {ordinal}")
    return [task_of(*by_ordinal[ordinal]) for ordinal in ordinals]


def _possible(ordinals: Collection[int]) -> list[int]:
    """Returns the ordinals that a database can hold as numbers."""
    return [ordinal for ordinal in set(ordinals) if 0 <= ordinal < 2**31]


# --- trajectories

_TRAJECTORY = """SELECT k.id, t.sample, t.id, t.task, t.status, t.settled IS NOT NULL, t.epoch,
        t.length, coalesce('process ' || w.pid || ' on ' || w.host, ''),
        g.current{more}
    FROM trajectories t JOIN tasks k ON k.run = t.run AND k.ordinal = t.task
    JOIN task_groups g ON g.run = t.run AND g.task = t.task
    LEFT JOIN workers w ON w.id = t.owner
    WHERE t.run = :run{where} ORDER BY t.task, t.sample"""
_ALL = _TRAJECTORY.format(more="", where="")
SOME_TRAJECTORIES = _TRAJECTORY.format(more="", where=" AND t.task = ANY(:tasks)")
# In a file, this is one pass over all records.
_UNCOUNTED = """SELECT trajectory, count(*) FROM records WHERE trajectory = ANY(:ids)
    GROUP BY trajectory"""
_SUMMARIZED = _TRAJECTORY.format(more=", t.summary", where=" AND t.task = ANY(:tasks)")


def trajectories(
    store: Store, run: Run, *, ordinals: Collection[int] | None = None
) -> list[TrajectoryRow]:
    """Returns the trajectories in the order of tasks and samples. With `ordinals`, reads and
    returns only the trajectories of these tasks."""
    if ordinals is None:
        rows = store.rows(_ALL, run=run.id)
    else:
        rows = store.rows(SOME_TRAJECTORIES, run=run.id, tasks=_possible(ordinals))
    return trajectory_rows(store, run.spec.name, rows)


def is_rolled_out(store: Store, run: Run, *, retries_failed: bool) -> bool:
    """Returns whether every rollout of the run is over. With `retries_failed`, a trajectory that
    failed for good does not count as over. Does not load the rows from the database, because a run
    may have a million of them."""
    if not progress(store, run).sealed:
        return False
    unsettled = "" if retries_failed else " AND t.settled IS NULL"
    row = store.row(
        "SELECT 1 FROM trajectories t JOIN task_groups g "  # noqa: S608 - ours
        "ON g.run = t.run AND g.task = t.task AND g.current "
        f"WHERE t.run = :run AND NOT (t.status = ANY(:outcomes)){unsettled} LIMIT 1",
        run=run.id,
        outcomes=OUTCOMES,
    )
    return row is None


def summarized(
    store: Store, run: Run, ordinals: Collection[int]
) -> list[tuple[TrajectoryRow, Summary | None]]:
    """Returns the trajectories of these tasks, each with its stored summary. Reads no log: the
    summary is None if none is stored, for example of an open trajectory, or if it does not cover
    the whole log."""
    rows = store.rows(_SUMMARIZED, run=run.id, tasks=_possible(ordinals))
    listed = trajectory_rows(store, run.spec.name, rows)
    return [(each, summary_of_row(each, row[10])) for each, row in zip(listed, rows, strict=True)]


def trajectory_rows(store: Store, run: str, rows: list[Row]) -> list[TrajectoryRow]:
    """Converts database rows to trajectories of the run with this name."""
    lengths = uncounted(store, [row[2] for row in rows if row[4] and not row[7]])
    return [_trajectory_row(run, row, lengths.get(row[2], row[7])) for row in rows]


def uncounted(store: Store, trajectories: Sequence[int]) -> dict[int, int]:
    """Returns the number of records of each of these trajectories that was begun but whose row
    counts no records. Such records mean damage."""
    if not trajectories:
        return {}
    return dict(store.rows(_UNCOUNTED, ids=trajectories))


def _trajectory_row(run: str, row: Row, records: object) -> TrajectoryRow:
    name, sample, identity, ordinal, status, settled, epoch, _, owner, is_current, *_ = row
    key = TrajectoryKey(run, text_of(name, of=f"the name of task {ordinal}"), sample)
    # A damaged page can change the type of a column. A log whose head has no number can still be
    # cut, because reading it reports the damage.
    if not (isinstance(sample, int) and isinstance(ordinal, int) and isinstance(epoch, int)):
        raise JournalCorrupt(f"{key}: its row does not decode ({row[1:8]!r:.100})")
    return TrajectoryRow(
        key=key,
        id=identity,
        ordinal=ordinal,
        status=status_of(status, of=key),
        settled=bool(settled),
        epoch=epoch,
        records=records if isinstance(records, int) else -1,
        owner=owner,
        resting=not is_current,
    )


def status_of(value: object, *, of: object) -> Status:
    try:
        return Status(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise JournalCorrupt(f"{of} has status {value!r:.20}, which does not exist") from error


# --- the list of runs


def listing(store: Store, *, counted: bool = True) -> list[RunRow]:
    """Returns all runs. Without `counted`, `by_status` is empty, and the cost does not grow with
    the number of trajectories."""
    every = store.rows(f"{_RUN} ORDER BY id")
    return [_run_row(store, run_of(row), counted=counted) for row in every]


def _run_row(store: Store, run: Run, *, counted: bool) -> RunRow:
    by_status = (
        []
        if not counted
        else store.rows(
            "SELECT t.status, count(*), count(t.settled) FROM trajectories t JOIN task_groups g "
            "ON g.run = t.run AND g.task = t.task AND g.current WHERE t.run = :run "
            "GROUP BY t.status ORDER BY t.status",
            run=run.id,
        )
    )
    row = store.row(
        "SELECT count(*), NOT EXISTS (SELECT 1 FROM streams WHERE run = :run) "
        "FROM task_groups WHERE run = :run AND current",
        run=run.id,
    )
    assert row is not None, "an aggregate has one row"
    return RunRow(
        name=run.spec.name,
        created=run.created,
        tasks=row[0],
        samples=run.spec.samples,
        by_status={
            status_of(status, of=f"a trajectory of run {run.spec.name!r}").name: total
            for status, total, _ in by_status
        },
        settled=sum(settled for _, _, settled in by_status)
        if counted
        else progress(store, run).settled,
        sealed=bool(row[1]),
        live_workers=live_workers(store, run),
    )


def live_workers(store: Store, run: Run) -> tuple[str, ...]:
    """Returns the workers whose leases have not ended and whose processes are not gone."""
    workers = store.rows(
        "SELECT host, pid, born, namespace FROM workers w "  # noqa: S608 - IS_LEASED is ours
        f"WHERE run = :run AND {IS_LEASED} ORDER BY id",
        run=run.id,
        **store.now().parameters,
    )
    identities = [WorkerIdentity(*worker) for worker in workers]
    return tuple(str(worker) for worker in identities if not is_gone(worker))
