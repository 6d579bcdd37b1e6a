"""The ledger of a run's groups, as SQL: reserved, committed with a checkpoint, given back.

A group becomes ready when its last member is settled, and has a place in that order. A consumer
looks at each ready group once, in that order: `seen` is how far it came. What it has looked at is
a row of `deliveries` with one state; the primary key (run, task, consumer) leaves no room for a
second. So a group is trained at most once (I6), and a step costs what its groups cost.

Every operation compares the epoch of the consumer's lease in its own transaction (I7).
"""

import sqlite3
from collections.abc import Mapping, Sequence

from msgspec import structs

from holdfast.journal.journal import (
    Batch,
    Consumer,
    LedgerEntry,
    TrajectoryRow,
    WorkerIdentity,
)
from holdfast.journal.lease_clock import IS_LEASED, Instant
from holdfast.journal.ledger import (
    UNKNOWN,
    DeliveryState,
    KnownGroup,
    end_of,
    fresh_tasks,
    later_than,
)
from holdfast.journal.process import is_gone
from holdfast.journal.rules import consumer_held, lease_lost, not_taken, step_passed
from holdfast.journal.sqlite.runs import policy_of, progress, text_of, trajectory_rows
from holdfast.records.group import Dismissal, GroupPolicy
from holdfast.records.run import MAX_TRAJECTORIES, Run
from holdfast.records.trajectory import Status

LOOK_AHEAD = 256
"""Groups that are looked at with one statement."""


# --- the lease

_LEASE = """lease_until = :wall + :lease, clock = :clock, clock_until = :ticks + :lease,
    lease_seconds = :lease"""
_SUBSCRIBE = f"""INSERT INTO consumers(run, consumer, committed, seen, epoch, host, pid, born,
        namespace, lease_until, clock, clock_until, lease_seconds)
    VALUES (:run, :name, NULL, 0, 1, :host, :pid, :born, :namespace, :wall + :lease, :clock,
        :ticks + :lease, :lease)
    ON CONFLICT(run, consumer) DO UPDATE SET epoch = epoch + 1, host = :host, pid = :pid,
        born = :born, namespace = :namespace, {_LEASE}
    RETURNING epoch, committed"""  # noqa: S608 - ours
_HOLDER = f"""SELECT host, pid, born, namespace,
        CASE WHEN clock <> '' AND clock = :clock THEN clock_until - :ticks
        ELSE lease_until - :wall END
    FROM consumers w WHERE run = :run AND consumer = :name AND {IS_LEASED}"""  # noqa: S608 - ours


def subscribe(
    connection: sqlite3.Connection,
    now: Instant,
    run: Run,
    name: str,
    identity: WorkerIdentity,
    *,
    lease_seconds: float,
) -> Consumer:
    who = now.parameters | {"run": run.id, "name": name, "lease": lease_seconds}
    held = connection.execute(_HOLDER, who).fetchone()
    if held is not None and not is_gone(holder := WorkerIdentity(*held[:4])):
        raise consumer_held(run, name, holder=str(holder), seconds=held[4])
    row = connection.execute(_SUBSCRIBE, who | structs.asdict(identity)).fetchone()
    return Consumer(run, name, row[0], identity, lease_seconds, row[1])


def renew(connection: sqlite3.Connection, now: Instant, consumer: Consumer) -> None:
    """Who acts is alive; `LeaseLost` when the lease is another's."""
    known = connection.execute(
        f"UPDATE consumers SET {_LEASE} "  # noqa: S608 - ours
        "WHERE run = :run AND consumer = :name AND epoch = :epoch",
        now.parameters | _named(consumer) | {"lease": consumer.lease_seconds},
    ).rowcount
    if not known:
        raise lease_lost(consumer)


def unsubscribe(connection: sqlite3.Connection, consumer: Consumer) -> None:
    connection.execute(
        "UPDATE consumers SET epoch = epoch + 1, lease_until = 0, clock_until = 0 "
        "WHERE run = :run AND consumer = :name AND epoch = :epoch",
        _named(consumer),
    )


def _named(consumer: Consumer) -> dict[str, object]:
    return {"run": consumer.run.id, "name": consumer.name, "epoch": consumer.epoch}


# --- taking

_COLUMNS = "run, task, consumer, state, settled, step, place, reason"
_UNSEEN = """SELECT g.task, g.settled FROM task_groups g
    JOIN tasks k ON k.run = g.run AND k.ordinal = g.task AND k.current
    LEFT JOIN deliveries d ON d.run = g.run AND d.task = g.task AND d.consumer = :name
    WHERE g.run = :run AND g.settled > :seen AND d.task IS NULL
    ORDER BY g.settled LIMIT :limit"""
_READY = """SELECT task FROM deliveries WHERE run = :run AND consumer = :name AND state = 0
    ORDER BY settled LIMIT :limit"""
# By the index of what is ready: the primary key would lead through all that was ever trained.
_OLDEST = """SELECT task FROM deliveries INDEXED BY deliveries_ready
    WHERE run = :run AND consumer = :name AND state = 0 AND task < :before
    ORDER BY task LIMIT :limit"""
_UNSEEN_BEFORE = """SELECT g.task FROM task_groups g
    JOIN tasks k ON k.run = g.run AND k.ordinal = g.task AND k.current
    LEFT JOIN deliveries d ON d.run = g.run AND d.task = g.task AND d.consumer = :name
    WHERE g.run = :run AND g.settled > :seen AND d.task IS NULL AND g.task < :before
    LIMIT :limit"""
# The index wants its own condition word for word.
_IN_STEP = """SELECT task FROM deliveries WHERE run = :run AND consumer = :name AND step = :step
    AND state IN (1, 2) AND state = 1 ORDER BY place"""


def take(
    connection: sqlite3.Connection,
    now: Instant,
    consumer: Consumer,
    step: int | None,
    groups: int,
    before: int | None = None,
) -> Batch:
    """The groups of that step, whole; None: for a step that is named later."""
    renew(connection, now, consumer)
    reserved, missing = _reserved(connection, consumer, step, groups)
    if missing > 0:
        more, short_of = _take(connection, consumer, missing, step, before)
        if short_of:
            return Batch(consumer.name, step, (), missing=short_of)
        reserved += more
    members = tuple(_members(connection, consumer.run, task) for task in reserved)
    ended = progress(connection, consumer.run).is_over and not _ready(connection, consumer, 1)
    return Batch(consumer.name, step, members, ended)


def _reserved(
    connection: sqlite3.Connection, consumer: Consumer, step: int | None, groups: int
) -> tuple[list[int], int]:
    """What the step has, and how many more it takes."""
    if step is None:
        return [], groups
    reserved = _tasks_in(connection, consumer, step)
    is_later = later_than(step, _committed(connection, consumer))
    if not reserved and not (is_later and _has_step(connection, consumer, step)):
        last = _last_step(connection, consumer)
        if last is not None and step <= last:
            raise step_passed(consumer.name, step=step, last=last)
    # What a checkpoint holds gets nothing new.
    return reserved, groups - len(reserved) if is_later else 0


def _take(
    connection: sqlite3.Connection,
    consumer: Consumer,
    groups: int,
    step: int | None,
    before: int | None,
) -> tuple[list[int], int]:
    """As many groups as asked for, or what is left of a run that is over; how many are missing."""
    if before is None:
        ready = _ready(connection, consumer, groups)
    else:
        ready = _oldest(connection, consumer, groups, before)
    if len(ready) < groups:
        if not progress(connection, consumer.run).is_over:
            return [], groups - len(ready)
        if before is not None:
            ready = _oldest(connection, consumer, groups, MAX_TRAJECTORIES)
    _put_in_step(connection, consumer, step, ready)
    return ready, 0


def _put_in_step(
    connection: sqlite3.Connection, consumer: Consumer, step: int | None, tasks: list[int]
) -> None:
    (first,) = connection.execute(
        "SELECT coalesce(max(place) + 1, 0) FROM deliveries "
        "WHERE run = :run AND consumer = :name AND step = :step AND state IN (1, 2)",
        _named(consumer) | {"step": step},
    ).fetchone()
    connection.executemany(
        "UPDATE deliveries SET state = 1, step = ?, place = ? "
        "WHERE run = ? AND task = ? AND consumer = ?",
        [
            (step, None if step is None else place, consumer.run.id, task, consumer.name)
            for place, task in enumerate(tasks, first)
        ],
    )


def _ready(connection: sqlite3.Connection, consumer: Consumer, limit: int) -> list[int]:
    """The first groups that can be taken, after a look at new ones if there are too few."""
    named = _named(consumer) | {"limit": limit}
    while len(found := connection.execute(_READY, named).fetchall()) < limit:
        if not _look(connection, consumer, limit - len(found)):
            break
    return [task for (task,) in found]


def _oldest(
    connection: sqlite3.Connection, consumer: Consumer, limit: int, before: int
) -> list[int]:
    """The first of the tasks below `before` whose groups can be taken."""
    while _look(connection, consumer, LOOK_AHEAD):
        pass
    named = _named(consumer) | {"limit": limit, "before": before}
    return [task for (task,) in connection.execute(_OLDEST, named).fetchall()]


def _look(connection: sqlite3.Connection, consumer: Consumer, limit: int) -> bool:
    """Looks at up to `limit` groups that became ready; False when there are none."""
    named = _named(consumer)
    (seen,) = connection.execute(
        "SELECT seen FROM consumers WHERE run = :run AND consumer = :name", named
    ).fetchone()
    new = connection.execute(_UNSEEN, named | {"seen": seen, "limit": limit}).fetchall()
    if not new:
        return False
    policy = policy_of(connection, consumer.run)
    connection.executemany(
        f"INSERT INTO deliveries({_COLUMNS}) VALUES (?, ?, ?, ?, ?, NULL, NULL, ?)",  # noqa: S608 - ours
        [_entry(connection, consumer, policy, task, place) for task, place in new],
    )
    connection.execute(
        "UPDATE consumers SET seen = :seen WHERE run = :run AND consumer = :name",
        named | {"seen": new[-1][1]},
    )
    return True


def _entry(
    connection: sqlite3.Connection, consumer: Consumer, policy: GroupPolicy, task: int, place: int
) -> tuple[int, int, str, int, int, str]:
    run = consumer.run
    members, valid = connection.execute(
        "SELECT count(*), sum(status IN (?, ?)) FROM trajectories WHERE run = ? AND task = ?",
        (int(Status.COMPLETED), int(Status.TRUNCATED), run.id, task),
    ).fetchone()
    kept = valid > 0 and policy.keeps(valid, of=members)
    state, reason = (
        (DeliveryState.READY, "") if kept else (DeliveryState.SHORT, str(Dismissal.TOO_FEW_VALID))
    )
    return (run.id, task, consumer.name, int(state), place, reason)


def may_take(
    connection: sqlite3.Connection,
    consumer: Consumer,
    step: int | None,
    groups: int,
    before: int | None = None,
) -> bool:
    """Whether asking for as many is worth a write. Reads no more than it asks for."""
    if step is not None:
        groups -= len(_tasks_in(connection, consumer, step))
    named = _named(consumer) | {"limit": groups, "before": before}
    row = connection.execute(
        "SELECT seen, epoch FROM consumers WHERE run = :run AND consumer = :name", named
    ).fetchone()
    if row is None or row[1] != consumer.epoch or progress(connection, consumer.run).is_over:
        return True
    ready = len(connection.execute(_READY if before is None else _OLDEST, named).fetchall())
    unseen = named | {"seen": row[0], "limit": groups - ready}
    looked = _UNSEEN if before is None else _UNSEEN_BEFORE
    return ready + len(connection.execute(looked, unseen).fetchall()) >= groups


def _tasks_in(connection: sqlite3.Connection, consumer: Consumer, step: int) -> list[int]:
    found = connection.execute(_IN_STEP, _named(consumer) | {"step": step})
    return [task for (task,) in found.fetchall()]


def _has_step(connection: sqlite3.Connection, consumer: Consumer, step: int) -> bool:
    """Also when all its groups were dismissed."""
    row = connection.execute(
        "SELECT 1 FROM deliveries WHERE run = :run AND consumer = :name AND step = :step "
        "AND state IN (1, 2)",
        _named(consumer) | {"step": step},
    ).fetchone()
    return row is not None


def _committed(connection: sqlite3.Connection, consumer: Consumer) -> int | None:
    (committed,) = connection.execute(
        "SELECT committed FROM consumers WHERE run = :run AND consumer = :name", _named(consumer)
    ).fetchone()
    return None if committed is None else int(committed)


def _last_step(connection: sqlite3.Connection, consumer: Consumer) -> int | None:
    """The last step that has groups or that a checkpoint holds."""
    (last,) = connection.execute(
        "SELECT max(step) FROM deliveries "
        "WHERE run = :run AND consumer = :name AND state IN (1, 2)",
        _named(consumer),
    ).fetchone()
    known = [step for step in (last, _committed(connection, consumer)) if step is not None]
    return max(known, default=None)


def _members(connection: sqlite3.Connection, run: Run, task: int) -> tuple[TrajectoryRow, ...]:
    where = "WHERE t.run = ? AND t.task = ? ORDER BY t.sample"
    return tuple(trajectory_rows(connection, run.spec.name, where, (run.id, task)))


# --- what becomes of the groups


def dismiss(
    connection: sqlite3.Connection,
    now: Instant,
    consumer: Consumer,
    groups: Sequence[str],
    *,
    reason: str,
) -> None:
    renew(connection, now, consumer)
    committed = _committed(connection, consumer)
    tasks: list[int] = []
    wrong: list[str] = []
    for name in groups:
        task, state, step, known = _of(connection, consumer, name)
        if state == DeliveryState.DISMISSED and known == reason:
            continue
        if state != DeliveryState.TAKEN or not later_than(step, committed):
            wrong.append(name)
        tasks.append(task)
    if wrong:
        raise not_taken(consumer.name, wrong)
    connection.executemany(
        "UPDATE deliveries SET state = 2, reason = ? WHERE run = ? AND task = ? AND consumer = ?",
        [(reason, consumer.run.id, task, consumer.name) for task in tasks],
    )


def _of(connection: sqlite3.Connection, consumer: Consumer, name: str) -> KnownGroup:
    row = connection.execute(
        "SELECT d.task, d.state, d.step, d.reason FROM tasks k JOIN deliveries d "
        "ON d.run = k.run AND d.task = k.ordinal AND d.consumer = ? WHERE k.run = ? AND k.id = ?",
        (consumer.name, consumer.run.id, name),
    ).fetchone()
    return UNKNOWN if row is None else row


def commit(
    connection: sqlite3.Connection,
    now: Instant,
    consumer: Consumer,
    step: int,
    groups: Sequence[str],
) -> None:
    renew(connection, now, consumer)
    if groups:
        _name_step(connection, consumer, step, groups)
    # What was dismissed since the last commit is part of this one.
    connection.execute(
        "UPDATE deliveries SET step = :step "
        "WHERE run = :run AND consumer = :name AND step IS NULL AND state IN (1, 2) AND state = 2",
        _named(consumer) | {"step": step},
    )
    connection.execute(
        "UPDATE consumers SET committed = max(coalesce(committed, :step), :step) "
        "WHERE run = :run AND consumer = :name",
        _named(consumer) | {"step": step},
    )


def _name_step(
    connection: sqlite3.Connection, consumer: Consumer, step: int, groups: Sequence[str]
) -> None:
    known = {name: _of(connection, consumer, name) for name in groups}
    fresh = fresh_tasks(consumer, step, known, committed=_committed(connection, consumer))
    _put_in_step(connection, consumer, step, fresh)


def rewind(
    connection: sqlite3.Connection,
    now: Instant,
    consumer: Consumer,
    step: int,
    trained: Mapping[str, int],
) -> int:
    renew(connection, now, consumer)
    _hold(connection, consumer, step, trained)
    named = _named(consumer) | {"step": step}
    # They are looked at again, as if nobody had, and with them what waits behind them: so the order
    # stays, and a group that was opened again meanwhile is not given.
    returned = connection.execute(
        "DELETE FROM deliveries WHERE run = :run AND consumer = :name "
        "AND state IN (1, 2) AND (step > :step OR step IS NULL) RETURNING settled",
        named,
    ).fetchall()
    waiting = connection.execute(
        "DELETE FROM deliveries WHERE run = :run AND consumer = :name AND state = 0 "
        "RETURNING settled",
        named,
    ).fetchall()
    first = min((place for (place,) in returned + waiting), default=None)
    # The restored checkpoint is the truth, also when a later one had been committed, or it was not.
    connection.execute(
        "UPDATE consumers SET "
        "committed = CASE WHEN :holds OR committed IS NOT NULL THEN :step END, "
        "seen = min(seen, coalesce(:first - 1, seen)) WHERE run = :run AND consumer = :name",
        named | {"first": first, "holds": bool(step or trained)},
    )
    return len(returned)


def _hold(
    connection: sqlite3.Connection, consumer: Consumer, step: int, trained: Mapping[str, int]
) -> None:
    """Groups that the checkpoint of `step` holds are in their steps, also those of no commit."""
    steps: dict[int, list[int]] = {}
    wrong: list[str] = []
    for name, at in trained.items():
        task, state, known, _ = _of(connection, consumer, name)
        if state != DeliveryState.TAKEN:
            wrong.append(name)
        elif later_than(known, step):
            steps.setdefault(at, []).append(task)
    if wrong:
        raise not_taken(consumer.name, wrong)
    for at, tasks in steps.items():
        _put_in_step(connection, consumer, at, tasks)


# --- the ledger

_LEDGER = """SELECT CAST(k.id AS BLOB), k.ordinal, d.state, d.step, d.reason, g.settled
    FROM tasks k LEFT JOIN task_groups g ON g.run = k.run AND g.task = k.ordinal
    LEFT JOIN deliveries d ON d.run = k.run AND d.task = k.ordinal AND d.consumer = :name
    WHERE k.run = :run AND k.ordinal >= :since AND (k.current OR d.state IN (1, 2))
    ORDER BY k.ordinal"""


def ledger(
    connection: sqlite3.Connection, run: Run, consumer: str, since: int = 0
) -> list[LedgerEntry]:
    named = {"run": run.id, "name": consumer, "since": since}
    row = connection.execute(
        "SELECT committed FROM consumers WHERE run = :run AND consumer = :name", named
    ).fetchone()
    committed = None if row is None else row[0]
    return [
        LedgerEntry(
            text_of(name, of=f"the name of task {ordinal}"),
            ordinal,
            *end_of(state, step, reason, committed=committed, settled=settled is not None),
        )
        for name, ordinal, state, step, reason, settled in connection.execute(
            _LEDGER, named
        ).fetchall()
    ]


def consumers(connection: sqlite3.Connection, run: Run) -> list[str]:
    found = connection.execute(
        "SELECT CAST(consumer AS BLOB) FROM consumers WHERE run = ? ORDER BY consumer", (run.id,)
    )
    return [text_of(name, of="the name of a consumer") for (name,) in found.fetchall()]
