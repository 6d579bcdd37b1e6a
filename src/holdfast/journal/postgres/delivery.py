"""The ledger of a run's groups, as SQL: reserved, committed with a checkpoint, given back.

The same rules as in a file (`sqlite.delivery`): a group becomes ready when its last member is
settled, and has a place in that order; a consumer looks at each ready group once, in that order,
and the primary key (run, task, consumer) leaves no room for a second end.

Every operation renews the consumer's lease first, under its epoch (I7). That holds the consumer's
row, so that two operations of one consumer come one after the other; and the run's row is held
against amending and reopening.
"""

from collections.abc import Mapping, Sequence

from holdfast.journal.journal import Batch, Consumer, LedgerEntry, TrajectoryRow, WorkerIdentity
from holdfast.journal.ledger import (
    UNKNOWN,
    DeliveryState,
    KnownGroup,
    end_of,
    fresh_tasks,
    later_than,
)
from holdfast.journal.postgres.connection import Row, ServerConnection, column
from holdfast.journal.postgres.runs import (
    check_text,
    lock,
    policy_of,
    progress,
    trajectory_rows,
)
from holdfast.journal.process import is_gone
from holdfast.journal.rules import consumer_held, lease_lost, not_taken, step_passed
from holdfast.records.errors import UsageError
from holdfast.records.group import Dismissal
from holdfast.records.run import MAX_TRAJECTORIES, Run
from holdfast.records.trajectory import Status

LOOK_AHEAD = 256
"""Groups that are looked at with one statement."""

# --- the lease

_LEASE = "lease_until = clock_timestamp() + {lease} * interval '1 second', lease_seconds = {lease}"
_SUBSCRIBE = f"""INSERT INTO holdfast.consumers(run, consumer, committed, seen, epoch, host, pid,
        born, namespace, lease_until, lease_seconds)
    VALUES ($1, $2, NULL, 0, 1, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 second', $7)
    ON CONFLICT(run, consumer) DO UPDATE SET epoch = consumers.epoch + 1, host = $3, pid = $4,
        born = $5, namespace = $6, {_LEASE.format(lease="$7")}
    RETURNING epoch, committed"""  # noqa: S608 - ours
_HOLDER = """SELECT host, pid, born, namespace,
        holdfast.is_expired(lease_until, lease_seconds) AS is_expired,
        extract(epoch FROM lease_until - clock_timestamp())::double precision AS seconds
    FROM holdfast.consumers WHERE run = $1 AND consumer = $2 AND lease_until > '-infinity'"""


async def subscribe(
    connection: ServerConnection,
    run: Run,
    name: str,
    identity: WorkerIdentity,
    *,
    lease_seconds: float,
) -> Consumer:
    check_text("a consumer's name", name)
    await lock(connection, run)
    held = await connection.fetchrow(_HOLDER, run.id, name)
    if held is not None and not held["is_expired"]:
        holder = WorkerIdentity(held["host"], held["pid"], held["born"], held["namespace"])
        if not is_gone(holder):
            raise consumer_held(run, name, holder=str(holder), seconds=held["seconds"])
    row = await connection.fetchrow(
        _SUBSCRIBE,
        run.id,
        name,
        identity.host,
        identity.pid,
        identity.born,
        identity.namespace,
        float(lease_seconds),
    )
    assert row is not None, "it was just written"
    return Consumer(run, name, row["epoch"], identity, lease_seconds, row["committed"])


async def renew(connection: ServerConnection, consumer: Consumer) -> Row:
    """Who acts is alive; `LeaseLost` when the lease is another's. The consumer's own row."""
    row = await connection.fetchrow(
        f"UPDATE holdfast.consumers SET {_LEASE.format(lease='$4')} "  # noqa: S608 - ours
        "WHERE run = $1 AND consumer = $2 AND epoch = $3 RETURNING committed, seen",
        consumer.run.id,
        consumer.name,
        consumer.epoch,
        float(consumer.lease_seconds),
    )
    if row is None:
        raise lease_lost(consumer)
    return row


async def _begin(connection: ServerConnection, consumer: Consumer) -> Row:
    """Holds the run and the consumer, in the order in which everyone does; the consumer's row."""
    try:
        await lock(connection, consumer.run, "SHARE")
    except UsageError as error:
        raise lease_lost(consumer) from error
    return await renew(connection, consumer)


async def unsubscribe(connection: ServerConnection, consumer: Consumer) -> None:
    await connection.execute(
        "UPDATE holdfast.consumers SET epoch = epoch + 1, lease_until = '-infinity' "
        "WHERE run = $1 AND consumer = $2 AND epoch = $3",
        consumer.run.id,
        consumer.name,
        consumer.epoch,
    )


# --- taking

_UNSEEN = """SELECT g.task, g.settled FROM holdfast.task_groups g
    LEFT JOIN holdfast.deliveries d ON d.run = g.run AND d.task = g.task AND d.consumer = $2
    WHERE g.run = $1 AND g.settled > $3 AND g.current AND d.task IS NULL
    ORDER BY g.settled LIMIT $4"""
_READY = """SELECT task FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 AND state = 0
    ORDER BY settled LIMIT $3"""
_OLDEST = """SELECT task FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 AND state = 0
    AND task < $4 ORDER BY task LIMIT $3"""
_UNSEEN_BEFORE = """SELECT g.task FROM holdfast.task_groups g
    LEFT JOIN holdfast.deliveries d ON d.run = g.run AND d.task = g.task AND d.consumer = $2
    WHERE g.run = $1 AND g.settled > $3 AND g.current AND d.task IS NULL AND g.task < $5
    LIMIT $4"""
# The index wants its own condition word for word.
_IN_STEP = """SELECT task FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 AND step = $3
    AND state IN (1, 2) AND state = 1 ORDER BY place"""


async def take(
    connection: ServerConnection,
    consumer: Consumer,
    step: int | None,
    groups: int,
    before: int | None = None,
) -> Batch:
    """The groups of that step, whole; None: for a step that is named later."""
    own = await _begin(connection, consumer)
    reserved, missing = await _reserved(connection, consumer, step, groups, own["committed"])
    if missing > 0:
        more, short_of = await _take(connection, consumer, missing, step, before)
        if short_of:
            return Batch(consumer.name, step, (), missing=short_of)
        reserved += more
    members = await _members(connection, consumer.run, reserved)
    over = (await progress(connection, consumer.run)).is_over
    ended = over and not await _ready(connection, consumer, 1)
    return Batch(consumer.name, step, members, ended)


async def _reserved(
    connection: ServerConnection,
    consumer: Consumer,
    step: int | None,
    groups: int,
    committed: int | None,
) -> tuple[list[int], int]:
    """What the step has, and how many more it takes."""
    if step is None:
        return [], groups
    reserved = await _tasks_in(connection, consumer, step)
    later = later_than(step, committed)
    if not reserved and not (later and await _has_step(connection, consumer, step)):
        last = await _last_step(connection, consumer, committed)
        if last is not None and step <= last:
            raise step_passed(consumer.name, step=step, last=last)
    # What a checkpoint holds gets nothing new.
    return reserved, groups - len(reserved) if later else 0


async def _take(
    connection: ServerConnection,
    consumer: Consumer,
    groups: int,
    step: int | None,
    before: int | None,
) -> tuple[list[int], int]:
    """As many groups as asked for, or what is left of a run that is over; how many are missing."""
    # Whether it is over is read first: what is settled after that is only looked at next time.
    is_over = (await progress(connection, consumer.run)).is_over
    if before is None:
        ready = await _ready(connection, consumer, groups)
    else:
        first = MAX_TRAJECTORIES if is_over else min(before, MAX_TRAJECTORIES)
        ready = await _oldest(connection, consumer, groups, first)
    if len(ready) < groups and not is_over:
        return [], groups - len(ready)
    await _put_in_step(connection, consumer, step, ready)
    return ready, 0


async def _put_in_step(
    connection: ServerConnection, consumer: Consumer, step: int | None, tasks: list[int]
) -> None:
    await connection.execute(
        "UPDATE holdfast.deliveries d SET state = 1, step = $3::bigint, "
        "place = CASE WHEN $3::bigint IS NULL THEN NULL ELSE n.number - 1 + (SELECT "
        "coalesce(max(place) + 1, 0) FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 "
        "AND step = $3::bigint AND state IN (1, 2)) END "
        "FROM unnest($4::integer[]) WITH ORDINALITY AS n(task, number) "
        "WHERE d.run = $1 AND d.consumer = $2 AND d.task = n.task",
        consumer.run.id,
        consumer.name,
        step,
        tasks,
    )


async def _ready(connection: ServerConnection, consumer: Consumer, limit: int) -> list[int]:
    """The first groups that can be taken, after a look at new ones if there are too few."""
    while True:
        rows = await connection.fetch(_READY, consumer.run.id, consumer.name, limit)
        if len(rows) >= limit or not await _look(connection, consumer, limit - len(rows)):
            return column(rows)


async def _oldest(
    connection: ServerConnection, consumer: Consumer, limit: int, before: int
) -> list[int]:
    """The first of the tasks below `before` whose groups can be taken."""
    while await _look(connection, consumer, LOOK_AHEAD):
        pass
    return column(await connection.fetch(_OLDEST, consumer.run.id, consumer.name, limit, before))


async def _look(connection: ServerConnection, consumer: Consumer, limit: int) -> bool:
    """Looks at up to `limit` groups that became ready; False when there are none."""
    run, name = consumer.run.id, consumer.name
    seen = await connection.fetchval(
        "SELECT seen FROM holdfast.consumers WHERE run = $1 AND consumer = $2", run, name
    )
    new = await connection.fetch(_UNSEEN, run, name, seen, limit)
    if not new:
        return False
    states, reasons = await _states(connection, consumer.run, column(new))
    await connection.execute(
        "INSERT INTO holdfast.deliveries(run, task, consumer, state, settled, reason) "
        "SELECT $1, n.task, $2, n.state, n.settled, n.reason FROM "
        "unnest($3::integer[], $4::smallint[], $5::bigint[], $6::text[]) "
        "AS n(task, state, settled, reason)",
        run,
        name,
        column(new),
        states,
        column(new, 1),
        reasons,
    )
    await connection.execute(
        "UPDATE holdfast.consumers SET seen = $3 WHERE run = $1 AND consumer = $2",
        run,
        name,
        new[-1]["settled"],
    )
    return True


async def _states(
    connection: ServerConnection, run: Run, tasks: list[int]
) -> tuple[list[int], list[str]]:
    """READY or SHORT for each group, by the run's policy, and the reason."""
    policy = await policy_of(connection, run)
    rows = await connection.fetch(
        "SELECT task, count(*) AS members, count(*) FILTER (WHERE status = ANY($3::smallint[])) "
        "AS valid FROM holdfast.trajectories WHERE run = $1 AND task = ANY($2::integer[]) "
        "GROUP BY task",
        run.id,
        tasks,
        [int(Status.COMPLETED), int(Status.TRUNCATED)],
    )
    kept = {
        row["task"]: row["valid"] > 0 and policy.keeps(row["valid"], of=row["members"])
        for row in rows
    }
    states = [int(DeliveryState.READY if kept[task] else DeliveryState.SHORT) for task in tasks]
    return states, ["" if kept[task] else str(Dismissal.TOO_FEW_VALID) for task in tasks]


async def may_take(
    connection: ServerConnection,
    consumer: Consumer,
    step: int | None,
    groups: int,
    before: int | None = None,
) -> bool:
    """Whether asking for as many is worth a write. Reads no more than it asks for."""
    run, name = consumer.run.id, consumer.name
    if step is not None:
        groups -= len(await _tasks_in(connection, consumer, step))
    row = await connection.fetchrow(
        "SELECT seen, epoch FROM holdfast.consumers WHERE run = $1 AND consumer = $2", run, name
    )
    if row is None or row["epoch"] != consumer.epoch:
        return True
    if (await progress(connection, consumer.run)).is_over:
        return True
    seen, limit = row["seen"], max(groups, 0)
    if before is None:
        ready = len(await connection.fetch(_READY, run, name, limit))
        unseen = await connection.fetch(_UNSEEN, run, name, seen, limit - ready)
    else:
        ready = len(await connection.fetch(_OLDEST, run, name, limit, before))
        unseen = await connection.fetch(_UNSEEN_BEFORE, run, name, seen, limit - ready, before)
    return ready + len(unseen) >= groups


async def _tasks_in(connection: ServerConnection, consumer: Consumer, step: int) -> list[int]:
    return column(await connection.fetch(_IN_STEP, consumer.run.id, consumer.name, step))


async def _has_step(connection: ServerConnection, consumer: Consumer, step: int) -> bool:
    """Also when all its groups were dismissed."""
    found = await connection.fetchval(
        "SELECT 1 FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 AND step = $3 "
        "AND state IN (1, 2) LIMIT 1",
        consumer.run.id,
        consumer.name,
        step,
    )
    return found is not None


async def _last_step(
    connection: ServerConnection, consumer: Consumer, committed: int | None
) -> int | None:
    """The last step that has groups or that a checkpoint holds."""
    last = await connection.fetchval(
        "SELECT max(step) FROM holdfast.deliveries "
        "WHERE run = $1 AND consumer = $2 AND state IN (1, 2)",
        consumer.run.id,
        consumer.name,
    )
    known = [step for step in (last, committed) if step is not None]
    return max(known, default=None)


async def _members(
    connection: ServerConnection, run: Run, tasks: list[int]
) -> tuple[tuple[TrajectoryRow, ...], ...]:
    where = "WHERE t.run = $1 AND t.task = ANY($2::integer[]) ORDER BY t.task, t.sample"
    members: dict[int, list[TrajectoryRow]] = {task: [] for task in tasks}
    if tasks:
        for row in await trajectory_rows(connection, run.spec.name, where, run.id, tasks):
            members[row.ordinal].append(row)
    return tuple(tuple(members[task]) for task in tasks)


# --- what becomes of the groups


async def dismiss(
    connection: ServerConnection, consumer: Consumer, groups: Sequence[str], *, reason: str
) -> None:
    check_text("the reason of a dismissal", reason)
    committed = (await _begin(connection, consumer))["committed"]
    known = await _of(connection, consumer, groups)
    tasks: list[int] = []
    wrong: list[str] = []
    for name in groups:
        task, state, step, before = known.get(name, UNKNOWN)
        if state == DeliveryState.DISMISSED and before == reason:
            continue
        if state != DeliveryState.TAKEN or not later_than(step, committed):
            wrong.append(name)
        tasks.append(task)
    if wrong:
        raise not_taken(consumer.name, wrong)
    await connection.execute(
        "UPDATE holdfast.deliveries SET state = 2, reason = $3 "
        "WHERE run = $1 AND consumer = $2 AND task = ANY($4::integer[])",
        consumer.run.id,
        consumer.name,
        reason,
        tasks,
    )


async def _of(
    connection: ServerConnection, consumer: Consumer, names: Sequence[str]
) -> dict[str, KnownGroup]:
    """Those of the groups that the consumer has looked at."""
    rows = await connection.fetch(
        "SELECT k.id, d.task, d.state, d.step, d.reason FROM holdfast.tasks k "
        "JOIN holdfast.deliveries d ON d.run = k.run AND d.task = k.ordinal AND d.consumer = $2 "
        "WHERE k.run = $1 AND k.id = ANY($3::text[])",
        consumer.run.id,
        consumer.name,
        [name for name in set(names) if "\0" not in name],
    )
    return {row[0]: (row[1], row[2], row[3], row[4]) for row in rows}


async def commit(
    connection: ServerConnection, consumer: Consumer, step: int, groups: Sequence[str]
) -> None:
    committed = (await _begin(connection, consumer))["committed"]
    if groups:
        await _name_step(connection, consumer, step, groups, committed)
    # What was dismissed since the last commit is part of this one.
    await connection.execute(
        "UPDATE holdfast.deliveries SET step = $3 "
        "WHERE run = $1 AND consumer = $2 AND step IS NULL AND state IN (1, 2) AND state = 2",
        consumer.run.id,
        consumer.name,
        step,
    )
    await connection.execute(
        "UPDATE holdfast.consumers SET committed = greatest(coalesce(committed, $3), $3) "
        "WHERE run = $1 AND consumer = $2",
        consumer.run.id,
        consumer.name,
        step,
    )


async def _name_step(
    connection: ServerConnection,
    consumer: Consumer,
    step: int,
    groups: Sequence[str],
    committed: int | None,
) -> None:
    found = await _of(connection, consumer, groups)
    known = {name: found.get(name, UNKNOWN) for name in groups}
    fresh = fresh_tasks(consumer, step, known, committed=committed)
    await _put_in_step(connection, consumer, step, fresh)


async def rewind(
    connection: ServerConnection, consumer: Consumer, step: int, trained: Mapping[str, int]
) -> int:
    await _begin(connection, consumer)
    await _hold(connection, consumer, step, trained)
    # They are looked at again, as if nobody had, and with them what waits behind them: so the order
    # stays, and a group that was opened again meanwhile is not given.
    returned = await connection.fetch(
        "DELETE FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 "
        "AND state IN (1, 2) AND (step > $3 OR step IS NULL) RETURNING settled",
        consumer.run.id,
        consumer.name,
        step,
    )
    waiting = await connection.fetch(
        "DELETE FROM holdfast.deliveries WHERE run = $1 AND consumer = $2 AND state = 0 "
        "RETURNING settled",
        consumer.run.id,
        consumer.name,
    )
    first = min((row["settled"] for row in returned + waiting), default=None)
    # The restored checkpoint is the truth, also when a later one had been committed, or it was not.
    await connection.execute(
        "UPDATE holdfast.consumers SET "
        "committed = CASE WHEN $5::boolean OR committed IS NOT NULL THEN $3::bigint END, "
        "seen = least(seen, coalesce($4::bigint - 1, seen)) WHERE run = $1 AND consumer = $2",
        consumer.run.id,
        consumer.name,
        step,
        first,
        bool(step or trained),
    )
    return len(returned)


async def _hold(
    connection: ServerConnection, consumer: Consumer, step: int, trained: Mapping[str, int]
) -> None:
    """Groups that the checkpoint of `step` holds are in their steps, also those of no commit."""
    known = await _of(connection, consumer, list(trained)) if trained else {}
    steps: dict[int, list[int]] = {}
    wrong: list[str] = []
    for name, at in trained.items():
        task, state, before, _ = known.get(name, UNKNOWN)
        if state != DeliveryState.TAKEN:
            wrong.append(name)
        elif later_than(before, step):
            steps.setdefault(at, []).append(task)
    if wrong:
        raise not_taken(consumer.name, wrong)
    for at, tasks in steps.items():
        await _put_in_step(connection, consumer, at, tasks)


# --- the ledger

_LEDGER = """SELECT k.id, k.ordinal, d.state, d.step, d.reason, g.settled IS NOT NULL AS settled
    FROM holdfast.tasks k JOIN holdfast.task_groups g ON g.run = k.run AND g.task = k.ordinal
    LEFT JOIN holdfast.deliveries d ON d.run = k.run AND d.task = k.ordinal AND d.consumer = $2
    WHERE k.run = $1 AND k.ordinal >= $3 AND (g.current OR d.state IN (1, 2))
    ORDER BY k.ordinal"""


async def ledger(
    connection: ServerConnection, run: Run, consumer: str, since: int = 0
) -> list[LedgerEntry]:
    committed = await connection.fetchval(
        "SELECT committed FROM holdfast.consumers WHERE run = $1 AND consumer = $2",
        run.id,
        consumer,
    )
    return [
        LedgerEntry(
            row["id"],
            row["ordinal"],
            *end_of(
                row["state"],
                row["step"],
                row["reason"],
                committed=committed,
                settled=row["settled"],
            ),
        )
        for row in await connection.fetch(_LEDGER, run.id, consumer, min(since, MAX_TRAJECTORIES))
    ]


async def consumers(connection: ServerConnection, run: Run) -> list[str]:
    return column(
        await connection.fetch(
            "SELECT consumer FROM holdfast.consumers WHERE run = $1 ORDER BY consumer", run.id
        )
    )
