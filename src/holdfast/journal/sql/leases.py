"""Workers, leases and claims.

One heartbeat of a worker renews all its leases. When a worker takes over a trajectory, the epoch of
the trajectory rises. An earlier owner that was only asleep then finds every append refused. Clocks
decide when a worker counts as dead. They never decide whether a write is correct. A pid is looked
up only where it is valid: on its own machine and in its own namespace.
"""

from msgspec import structs

from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT, with_lease_end
from holdfast.journal.process import is_gone, this_process
from holdfast.journal.rows import task_of
from holdfast.journal.rules import run_held
from holdfast.journal.sql import runs
from holdfast.journal.sql.groups import recount
from holdfast.journal.sql.store import Row, Store, values_of
from holdfast.journal.types import Claim, Lease, TrajectoryRow, Worker, WorkerIdentity
from holdfast.records.errors import LeaseLost
from holdfast.records.run import Run

_JOIN = """INSERT INTO workers(
        run, host, pid, born, namespace, lease_until, clock, clock_until, lease_seconds)
    VALUES (:run, :host, :pid, :born, :namespace, :wall + :lease, :clock, :ticks + :lease, :lease)
    RETURNING id"""
_WORKERS = f"""SELECT id, {IS_LEASED}, {SECONDS_LEFT}, host, pid, born, namespace
    FROM workers w WHERE run = :run ORDER BY id"""  # noqa: S608 - ours
_NEIGHBOURS = """SELECT id, host, pid, born, namespace FROM workers
    WHERE run = :run AND host = :host AND namespace = :namespace FOR UPDATE SKIP LOCKED"""
# Uses the index of free groups. The primary key would lead through all held groups.
_CLAIMABLE = """SELECT task FROM task_groups INDEXED BY task_groups_claimable
    WHERE run = :run AND open > 0 AND held = 0 AND current AND task > :after
    ORDER BY task LIMIT :groups FOR UPDATE SKIP LOCKED"""


_RENEW = """UPDATE workers SET lease_until = :wall + :lease, clock = :clock,
        clock_until = :ticks + :lease
    WHERE id = :worker RETURNING (SELECT name FROM runs WHERE id = workers.run)"""
_IS_LATE = "(clock = '' AND lease_until > :wall + lease_seconds)"
_DOUBTFUL = f"""SELECT id, {_IS_LATE} FROM workers w
    WHERE run = :run AND ({_IS_LATE} OR NOT {IS_LEASED}) FOR UPDATE SKIP LOCKED"""  # noqa: S608 - ours
_LATE = f"SELECT {{key}} FROM {{table}} WHERE run = :run AND {_IS_LATE} FOR UPDATE SKIP LOCKED"  # noqa: S608 - ours
_SHORTEN = """UPDATE {table} SET lease_until = :wall + lease_seconds
    WHERE run = :run AND {key} = ANY(:late)"""
_HOLD = """UPDATE trajectories SET owner = :worker, epoch = epoch + 1
    WHERE run = :run AND task = ANY(:tasks) AND settled IS NULL"""
_COUNT_HELD = "UPDATE task_groups SET held = open WHERE run = :run AND task = ANY(:tasks)"


def shorten(store: Store, run: int) -> None:
    """Shortens each lease of the run that has more time left than a lease lasts. Call it before
    taking work over.

    Such leases exist after the wall clock was set back. Dead holders then keep their work for one
    more lease, and living holders have time to renew. Call it in its own transaction, because a
    refusal would undo it. Locked rows are skipped: their holders are renewing them.
    """
    now = store.now().parameters
    for table, key in (("workers", "id"), ("consumers", "consumer")):
        late = values_of(store.rows(_LATE.format(table=table, key=key), run=run, **now))
        if late:
            store.run(_SHORTEN.format(table=table, key=key), run=run, late=late, **now)


def join(
    store: Store, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
) -> Worker:
    """Registers a worker. Without `share`, raises `RunHeld` if another live worker is on the
    run."""
    runs.lock(store, run)
    living = release_dead(store, run)
    if living and not share:
        raise run_held(run, living)
    who = structs.asdict(identity) | store.now().parameters
    [(number,)] = store.rows(_JOIN, run=run.id, lease=float(lease_seconds), **who)
    return Worker(number, identity, run.id, lease_seconds)


def release_dead(store: Store, run: Run) -> list[str]:
    """Fences workers whose lease ran out or whose process is gone. Returns the names of the living
    workers."""
    living = []
    for worker, is_leased, seconds, *who in store.rows(
        _WORKERS, run=run.id, **store.now().parameters
    ):
        identity = WorkerIdentity(*who)
        if is_leased and not is_gone(identity):
            living.append(with_lease_end(identity, seconds))
        else:
            release(store, worker)
    _free_orphans(store, run)
    return living


def _free_orphans(store: Store, run: Run) -> None:
    """Frees trajectories whose owner is not among the workers."""
    freed = store.rows(
        "UPDATE trajectories SET owner = NULL, epoch = epoch + 1 WHERE run = :run "
        "AND settled IS NULL AND owner IS NOT NULL AND owner NOT IN (SELECT id FROM workers) "
        "RETURNING task",
        run=run.id,
    )
    recount(store, run.id, values_of(freed))


def leave(store: Store, worker: Worker) -> None:
    """Gives all leases of the worker back at once."""
    release(store, worker.id)


def release(store: Store, worker: int) -> None:
    """Fences a worker. Its trajectories become free, and its later appends are refused."""
    store.run("DELETE FROM workers WHERE id = :worker", worker=worker)
    freed = store.rows(
        "UPDATE trajectories SET owner = NULL, epoch = epoch + 1 "
        "WHERE owner = :worker AND settled IS NULL RETURNING run, task",
        worker=worker,
    )
    for run in sorted(set(values_of(freed))):
        recount(store, run, [row[1] for row in freed if row[0] == run])
        store.notify(run, "work")


def heartbeat(store: Store, worker: Worker) -> None:
    """Extends all leases of the worker. Raises `LeaseLost` if the worker was declared dead in the
    meantime."""
    _name_of_run(worker, store.rows(_RENEW, **_renewal(store, worker)))


def _renewal(store: Store, worker: Worker) -> dict[str, object]:
    """Returns the parameters of `_RENEW`."""
    lease = float(worker.lease_seconds)
    return {"worker": worker.id, "lease": lease, **store.now().parameters}


def _name_of_run(worker: Worker, renewed: list[Row]) -> str:
    """Returns the name of the worker's run from `renewed`, the rows that `_RENEW` returned. Raises
    `LeaseLost` if `renewed` is empty."""
    if not renewed:
        raise LeaseLost(
            f"{worker.identity} was silent for more than {worker.lease_seconds:g} s and another "
            "worker took its run over; nothing that it does is recorded any more"
        )
    return runs.text_of(renewed[0][0], of="the name of a run")


def claim(store: Store, worker: Worker, *, groups: int, after: int) -> list[Claim]:
    """Claims up to `groups` free groups in the order of tasks. Begins after task `after`; if no
    group is free there, begins again at the first task. A claim therefore costs the same for any
    number of groups in progress."""
    values = {"run": worker.run, "after": after, "groups": groups, **_renewal(store, worker)}
    # Renews first, because this worker is alive. Otherwise a worker whose lease ran out would claim
    # its own groups again.
    renewed, doubtful, free = store.together(_RENEW, _DOUBTFUL, _CLAIMABLE, **values)
    name, tasks = _name_of_run(worker, renewed), values_of(free)
    if doubtful:
        _end_or_shorten(store, doubtful, values)
        tasks = _free(store, worker, groups, after)
    if not tasks and after >= 0:
        tasks = _free(store, worker, groups, -1)
    if not tasks and _release_gone(store, worker):
        tasks = _free(store, worker, groups, -1)
    return _claims(store, worker, name, tasks) if tasks else []


def _end_or_shorten(store: Store, doubtful: list[Row], values: dict[str, object]) -> None:
    """Ends leases that ran out, and shortens leases that last too long (see `shorten`)."""
    late = [worker for worker, is_late in doubtful if is_late]
    store.run(_SHORTEN.format(table="workers", key="id"), late=late, **values)
    for worker, is_late in doubtful:
        if not is_late:
            release(store, worker)


def _free(store: Store, worker: Worker, groups: int, after: int) -> list[int]:
    return values_of(store.rows(_CLAIMABLE, run=worker.run, after=after, groups=groups))


def _release_gone(store: Store, worker: Worker) -> bool:
    """Frees the trajectories of killed workers of this machine. Returns whether there were such
    workers. Processes of other machines cannot be looked up here."""
    here = this_process()
    rows = store.rows(_NEIGHBOURS, run=worker.run, host=here.host, namespace=here.namespace)
    gone = [row[0] for row in rows if row[0] != worker.id and is_gone(WorkerIdentity(*row[1:]))]
    for number in gone:
        release(store, number)
    return bool(gone)


def _claims(store: Store, worker: Worker, run: str, tasks: list[int]) -> list[Claim]:
    *_, rows, bodies = store.together(
        _HOLD,
        _COUNT_HELD,
        runs.SOME_TRAJECTORIES,
        runs.SOME_TASKS,
        worker=worker.id,
        run=worker.run,
        tasks=tasks,
    )
    members: dict[int, list[TrajectoryRow]] = {task: [] for task in tasks}
    for member in runs.trajectory_rows(store, run, rows):
        members[member.ordinal].append(member)
    by_task = {body[0]: task_of(*body) for body in bodies}
    return [
        Claim(
            by_task[task],
            task,
            [_lease(member) for member in members[task] if not member.settled],
            [member for member in members[task] if member.settled],
        )
        for task in tasks
    ]


def _lease(member: TrajectoryRow) -> Lease:
    return Lease(
        key=member.key,
        id=member.id,
        ordinal=member.ordinal,
        epoch=member.epoch,
        status=member.status,
        settled=False,
        next_seq=member.records,
    )
