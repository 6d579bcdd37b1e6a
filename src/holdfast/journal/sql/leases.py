"""Workers, leases and claims.

A worker's one heartbeat keeps all its leases. Taking a trajectory over bumps its epoch, so that a
worker that was only asleep finds every append refused. Clocks decide when a worker may be taken for
dead; they never decide whether a write is right. A process is looked up only where its number means
something: on its own machine, in its own namespace.
"""

from msgspec import structs

from holdfast.journal.journal import Claim, Lease, TrajectoryRow, Worker, WorkerIdentity
from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT, with_lease_end
from holdfast.journal.process import is_gone, this_process
from holdfast.journal.rules import run_held
from holdfast.journal.sql import runs
from holdfast.journal.sql.groups import recount
from holdfast.journal.sql.store import Store, values_of
from holdfast.records.errors import LeaseLost
from holdfast.records.run import Run

_JOIN = """INSERT INTO workers(
        run, host, pid, born, namespace, lease_until, clock, clock_until, lease_seconds)
    VALUES (:run, :host, :pid, :born, :namespace, :wall + :lease, :clock, :ticks + :lease, :lease)
    RETURNING id"""
_WORKERS = f"""SELECT id, {IS_LEASED}, {SECONDS_LEFT}, host, pid, born, namespace
    FROM workers w WHERE run = :run ORDER BY id"""  # noqa: S608 - ours
_EXPIRED = f"""SELECT id FROM workers w WHERE run = :run AND NOT {IS_LEASED}
    FOR UPDATE SKIP LOCKED"""  # noqa: S608 - ours
_NEIGHBOURS = """SELECT id, host, pid, born, namespace FROM workers
    WHERE run = :run AND host = :host AND namespace = :namespace FOR UPDATE SKIP LOCKED"""
# By the index of what is free: the primary key would lead through all that is held.
_CLAIMABLE = """SELECT task FROM task_groups INDEXED BY task_groups_claimable
    WHERE run = :run AND open > 0 AND held = 0 AND current AND task > :after
    ORDER BY task LIMIT :groups FOR UPDATE SKIP LOCKED"""


_LATE = """SELECT {key} FROM {table} WHERE run = :run AND clock = ''
    AND lease_until > :wall + lease_seconds{lock}"""
_SHORTEN = """UPDATE {table} SET lease_until = :wall + lease_seconds
    WHERE run = :run AND {key} = ANY(:late)"""
_KEYS = {"workers": "id", "consumers": "consumer"}


def shorten(store: Store, run: int, *tables: str) -> None:
    """No lease lasts longer than its own seconds from now. Whoever may take work over calls this
    first: after the wall clock was set back, the dead keep their work for one lease, and the living
    have the time to renew theirs. It takes a transaction of its own, since a refusal undoes its.
    What is locked is being renewed.
    """
    now = store.now().parameters
    for table in tables or _KEYS:
        names = {"table": table, "key": _KEYS[table], "lock": " FOR UPDATE SKIP LOCKED"}
        if late := values_of(store.rows(_LATE.format(**names), run=run, **now)):
            store.run(_SHORTEN.format(**names), run=run, late=late, **now)


def has_late(store: Store, run: int) -> bool:
    """Whether there is anything to shorten: most often there is not."""
    now = store.now().parameters
    return any(
        store.rows(_LATE.format(table=table, key=key, lock=""), run=run, **now)
        for table, key in _KEYS.items()
    )


def join(
    store: Store, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
) -> Worker:
    runs.lock(store, run)
    living = release_dead(store, run)
    if living and not share:
        raise run_held(run, living)
    who = structs.asdict(identity) | store.now().parameters
    row = store.row(_JOIN, run=run.id, lease=float(lease_seconds), **who)
    assert row is not None, "it was just written"
    return Worker(row[0], identity, run.id, lease_seconds)


def release_dead(store: Store, run: Run) -> list[str]:
    """Fences workers with a lease that ran out or a process that is gone; names those that live."""
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
    """What a worker held whose row is lost."""
    freed = store.rows(
        "UPDATE trajectories SET owner = NULL, epoch = epoch + 1 WHERE run = :run "
        "AND settled IS NULL AND owner IS NOT NULL AND owner NOT IN (SELECT id FROM workers) "
        "RETURNING task",
        run=run.id,
    )
    recount(store, run.id, values_of(freed))


def release(store: Store, worker: int) -> None:
    """Fences a worker: what it holds is free, and nothing that it sends is written."""
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
    known = store.run(
        "UPDATE workers SET lease_until = :wall + :lease, clock = :clock, "
        "clock_until = :ticks + :lease WHERE id = :worker",
        worker=worker.id,
        lease=float(worker.lease_seconds),
        **store.now().parameters,
    )
    if not known:
        raise LeaseLost(
            f"{worker.identity} was silent for more than {worker.lease_seconds:g} s and another "
            "worker took its run over; nothing that it does is recorded any more"
        )


def claim(store: Store, worker: Worker, *, groups: int, after: int) -> list[Claim]:
    """Groups behind task `after` that nobody holds, in order, and else from the first. Claims go
    through the tasks, so that one costs the same however many groups are being worked on."""
    # It is alive; without this, one that overslept would claim its own groups anew.
    heartbeat(store, worker)
    shorten(store, worker.run, "workers")
    for (dead,) in store.rows(_EXPIRED, run=worker.run, **store.now().parameters):
        release(store, dead)
    tasks = _free(store, worker, groups, after)
    if not tasks and after >= 0:
        tasks = _free(store, worker, groups, -1)
    if not tasks and _release_gone(store, worker):
        tasks = _free(store, worker, groups, -1)
    return _claims(store, worker, tasks) if tasks else []


def _free(store: Store, worker: Worker, groups: int, after: int) -> list[int]:
    return values_of(store.rows(_CLAIMABLE, run=worker.run, after=after, groups=groups))


def _release_gone(store: Store, worker: Worker) -> bool:
    """Nothing is left but what others hold: those of this machine that were killed hold nothing.
    Whether a process of another machine lives, nobody here can say."""
    here = this_process()
    rows = store.rows(_NEIGHBOURS, run=worker.run, host=here.host, namespace=here.namespace)
    gone = [row[0] for row in rows if row[0] != worker.id and is_gone(WorkerIdentity(*row[1:]))]
    for number in gone:
        release(store, number)
    return bool(gone)


def _claims(store: Store, worker: Worker, tasks: list[int]) -> list[Claim]:
    store.run(
        "UPDATE trajectories SET owner = :worker, epoch = epoch + 1 "
        "WHERE run = :run AND task = ANY(:tasks) AND settled IS NULL",
        worker=worker.id,
        run=worker.run,
        tasks=tasks,
    )
    store.run(
        "UPDATE task_groups SET held = open WHERE run = :run AND task = ANY(:tasks)",
        run=worker.run,
        tasks=tasks,
    )
    run = runs.by_id(store, worker.run)
    members: dict[int, list[TrajectoryRow]] = {task: [] for task in tasks}
    for member in runs.trajectories(store, run, ordinals=tasks):
        members[member.ordinal].append(member)
    bodies = runs.some_tasks(store, run, tasks)
    return [
        Claim(
            body,
            task,
            [_lease(member) for member in members[task] if not member.settled],
            [member for member in members[task] if member.settled],
        )
        for task, body in zip(tasks, bodies, strict=True)
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
