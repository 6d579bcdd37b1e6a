"""The ledger of a run's groups, which are reserved, committed with a checkpoint, or given back.

A group becomes ready when its last member is settled. Ready groups are ordered by the moment at
which they became ready. Each group that a consumer has taken or that was dismissed is a row of
`deliveries` with one state. The primary key (run, task, consumer) allows only one such row, so a
group is trained at most once (I6). All ready groups up to a consumer's place `seen` in this order
have such a row. The consumer therefore looks only at the groups behind `seen`, and the cost of a
step depends only on the number of its groups.

Every operation first renews the consumer's lease, with its epoch (I7). The renewal locks the
consumer's row, so that two operations of one consumer happen one after the other. The operation
also locks the run's row against amending and reopening.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from holdfast.journal import rules
from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT
from holdfast.journal.ledger import (
    UNKNOWN,
    DeliveryState,
    KnownGroup,
    end_of,
    fresh_tasks,
    later_than,
)
from holdfast.journal.process import is_gone
from holdfast.journal.sql import runs
from holdfast.journal.sql.lineage import refuse_if_shared
from holdfast.journal.sql.store import Row, Store, values_of
from holdfast.journal.types import Batch, Consumer, LedgerEntry, TrajectoryRow, WorkerIdentity
from holdfast.records.errors import UsageError
from holdfast.records.group import Dismissal
from holdfast.records.run import MAX_TRAJECTORIES, Run

# --- the lease

_LEASE = """lease_until = :wall + :lease, clock = :clock, clock_until = :ticks + :lease,
    lease_seconds = :lease"""
_SUBSCRIBE = f"""INSERT INTO consumers(run, consumer, committed, seen, epoch, host, pid, born,
        namespace, lease_until, clock, clock_until, lease_seconds)
    VALUES (:run, :name, NULL, 0, 1, :host, :pid, :born, :namespace, :wall + :lease, :clock,
        :ticks + :lease, :lease)
    ON CONFLICT(run, consumer) DO UPDATE SET epoch = consumers.epoch + 1, host = :host, pid = :pid,
        born = :born, namespace = :namespace, {_LEASE}
    RETURNING epoch, committed"""  # noqa: S608 - ours
_HOLDER = f"""SELECT host, pid, born, namespace, {SECONDS_LEFT}
    FROM consumers w WHERE run = :run AND consumer = :name AND {IS_LEASED}"""  # noqa: S608 - ours
_RENEW = f"""UPDATE consumers SET {_LEASE} WHERE run = :run AND consumer = :name AND epoch = :epoch
    RETURNING committed"""  # noqa: S608 - ours


def subscribe(
    store: Store, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
) -> Consumer:
    """Takes the consumer's lease. Raises `ConsumerHeld` while a live process holds the lease, and
    `UsageError` if a run that shares trajectories with this run has a consumer."""
    rules.check_consumer(name, lease_seconds)
    refuse_if_shared(store, run)
    runs.lock(store, run)
    now = store.now().parameters
    if holder := _holder(store, run, name):
        raise rules.consumer_held(run, name, holder=str(holder[0]), seconds=holder[1])
    [(epoch, committed)] = store.rows(
        _SUBSCRIBE,
        run=run.id,
        name=name,
        lease=float(lease_seconds),
        **structs.asdict(identity),
        **now,
    )
    return Consumer(run, name, epoch, identity, lease_seconds, committed)


def is_held(store: Store, run: Run, name: str) -> bool:
    """Returns whether a live process holds the lease of the consumer with this name."""
    return _holder(store, run, name) is not None


def _holder(store: Store, run: Run, name: str) -> tuple[WorkerIdentity, float] | None:
    """Returns the live process that holds the consumer's lease, and the seconds until the lease
    ends; None if no live process holds the lease."""
    row = store.row(_HOLDER, run=run.id, name=name, **store.now().parameters)
    if row is None or is_gone(holder := WorkerIdentity(*row[:4])):
        return None
    return holder, row[4]


def renew(store: Store, consumer: Consumer) -> None:
    """Extends the lease, as every operation of the consumer does. Raises `LeaseLost` if another
    process holds the lease now."""
    _renew(store, consumer)


def _renew(store: Store, consumer: Consumer) -> int | None:
    """Renews the lease, because a consumer that acts is alive. Returns the last committed step.
    Raises `LeaseLost` if another process holds the lease."""
    row = store.row(
        _RENEW, lease=float(consumer.lease_seconds), **_named(consumer), **store.now().parameters
    )
    if row is None:
        raise rules.lease_lost(consumer)
    committed: int | None = row[0]
    return committed


def begin(store: Store, consumer: Consumer, how: str = "SHARE") -> int | None:
    """Locks the run and then the consumer, in the order that all operations use, and renews the
    lease. Returns the last committed step. Raises `LeaseLost`."""
    try:
        runs.lock(store, consumer.run, how)
    except UsageError as error:
        raise rules.lease_lost(consumer) from error
    return _renew(store, consumer)


def unsubscribe(store: Store, consumer: Consumer) -> None:
    """Gives the lease back at once. Groups that were taken stay taken."""
    store.run(
        "UPDATE consumers SET epoch = epoch + 1, lease_until = 0, clock_until = 0, "
        "lease_seconds = 0 WHERE run = :run AND consumer = :name AND epoch = :epoch",
        **_named(consumer),
    )


def _named(consumer: Consumer) -> dict[str, object]:
    return {"run": consumer.run.id, "name": consumer.name, "epoch": consumer.epoch}


# --- taking

_UNSEEN = """FROM task_groups g
    LEFT JOIN deliveries d ON d.run = g.run AND d.task = g.task AND d.consumer = :name
    WHERE g.run = :run AND g.current AND d.task IS NULL AND g.settled >
        (SELECT seen FROM consumers c WHERE c.run = :run AND c.consumer = :name)
    ORDER BY g.settled"""
_READY = f"SELECT g.task, g.settled {_UNSEEN} LIMIT :limit"
_SEE = f"""UPDATE consumers SET seen = coalesce((SELECT g.settled - 1 {_UNSEEN} LIMIT 1),
        (SELECT settled FROM task_groups WHERE run = :run AND settled IS NOT NULL
            ORDER BY settled DESC LIMIT 1), seen)
    WHERE run = :run AND consumer = :name"""  # noqa: S608 - ours
# SQLite uses the index only if the condition is repeated word for word.
_IN_STEP = """SELECT task FROM deliveries WHERE run = :run AND consumer = :name AND step = :step
    AND state IN (1, 2) AND state = 1 ORDER BY place"""


def take(
    store: Store, consumer: Consumer, step: int | None, groups: int, before: int | None = None
) -> Batch:
    """Returns the whole batch of a step. `step` is None if the consumer names the step later."""
    rules.check_batch(groups, 0 if step is None else step)
    committed = begin(store, consumer)
    reserved, missing = _reserved(store, consumer, step, groups, committed)
    if missing > 0:
        more, short_of = _take(store, consumer, missing, step, before)
        if short_of:
            return Batch(consumer.name, step, (), missing=short_of)
        reserved += more
    members = _members(store, consumer.run, reserved)
    ended = runs.progress(store, consumer.run).is_over and not _kept_groups(store, consumer, 1)
    return Batch(consumer.name, step, members, ended)


def _reserved(
    store: Store, consumer: Consumer, step: int | None, groups: int, committed: int | None
) -> tuple[list[int], int]:
    """Returns the tasks of the groups that the step already has, and the number of groups that it
    still needs."""
    if step is None:
        return [], groups
    reserved = _tasks_in(store, consumer, step)
    is_later = later_than(step, committed)
    if not reserved and not (is_later and _has_step(store, consumer, step)):
        last = _last_step(store, consumer, committed)
        if last is not None and step <= last:
            raise rules.step_passed(consumer.name, step=step, last=last)
    # A step that a checkpoint holds gets no new groups.
    return reserved, groups - len(reserved) if is_later else 0


def _take(
    store: Store, consumer: Consumer, groups: int, step: int | None, before: int | None
) -> tuple[list[int], int]:
    """Takes `groups` ready groups, or none if there are fewer. If the run is over, takes the groups
    that are left. Returns the tasks of the taken groups, and the number of groups that were
    missing."""
    # Read first: groups that settle after this are examined in the next call.
    is_over = runs.progress(store, consumer.run).is_over
    if before is None:
        ready = _kept_groups(store, consumer, groups)
    else:
        every = _kept_groups(store, consumer, MAX_TRAJECTORIES)
        ready = sorted(row for row in every if is_over or row[0] < before)[:groups]
    if len(ready) < groups and not is_over:
        return [], groups - len(ready)
    _note(store, consumer, ready, DeliveryState.TAKEN)
    tasks = values_of(ready)
    if step is not None:
        _put_in_step(store, consumer, step, tasks)
    return tasks, 0


_PUT_IN_STEP = """UPDATE deliveries SET step = :step, place = :first + each.number - 1
    FROM EACH(:tasks) WHERE run = :run AND task = each.value AND task = ANY(:tasks)
        AND consumer = :name"""


def _put_in_step(store: Store, consumer: Consumer, step: int, tasks: list[int]) -> None:
    [(first,)] = store.rows(
        "SELECT coalesce(max(place) + 1, 0) FROM deliveries "
        "WHERE run = :run AND consumer = :name AND step = :step AND state IN (1, 2)",
        step=step,
        **_named(consumer),
    )
    store.run(_PUT_IN_STEP, tasks=tasks, step=step, first=first, **_named(consumer))


def _kept_groups(store: Store, consumer: Consumer, limit: int) -> list[Row]:
    """Returns the tasks and places of the first groups that can be taken. Dismisses groups before
    them that the run's policy does not keep."""
    while True:
        rows = store.rows(_READY, limit=limit, **_named(consumer))
        kept = _kept(store, consumer.run, values_of(rows)) if rows else set()
        short = [row for row in rows if row[0] not in kept]
        if not short:
            return rows
        _note(store, consumer, short, DeliveryState.SHORT)


def _note(store: Store, consumer: Consumer, groups: list[Row], state: DeliveryState) -> None:
    reason = str(Dismissal.TOO_FEW_VALID) if state is DeliveryState.SHORT else ""
    store.insert(
        "deliveries",
        "run, task, consumer, state, settled, reason",
        [(consumer.run.id, task, consumer.name, int(state), at, reason) for task, at in groups],
    )
    store.run(_SEE, **_named(consumer))


def _kept(store: Store, run: Run, tasks: list[int]) -> set[int]:
    """Returns the groups that the run's policy keeps."""
    policy = runs.policy_of(store, run)
    rows = store.rows(
        "SELECT task, count(*), count(*) FILTER (WHERE status = ANY(:outcomes)) FROM trajectories "
        "WHERE run = :run AND task = ANY(:tasks) GROUP BY task",
        run=run.id,
        tasks=tasks,
        outcomes=runs.OUTCOMES,
    )
    return {task for task, members, valid in rows if policy.keeps(valid, of=members)}


def may_take(
    store: Store, consumer: Consumer, step: int | None, groups: int, before: int | None = None
) -> bool:
    """Returns whether it is worth calling `take` with these arguments, because it may return a
    batch or raise an error. Writes nothing."""
    named = _named(consumer)
    if step is not None:
        groups -= len(_tasks_in(store, consumer, step))
    row = store.row("SELECT epoch FROM consumers WHERE run = :run AND consumer = :name", **named)
    if row is None or row[0] != consumer.epoch or runs.progress(store, consumer.run).is_over:
        return True
    limit = max(groups, 0) if before is None else MAX_TRAJECTORIES
    ready = store.rows(_READY, limit=limit, **named)
    return len([row for row in ready if before is None or row[0] < before]) >= groups


def _tasks_in(store: Store, consumer: Consumer, step: int) -> list[int]:
    return values_of(store.rows(_IN_STEP, step=step, **_named(consumer)))


def _has_step(store: Store, consumer: Consumer, step: int) -> bool:
    """Returns whether the step has groups, including dismissed groups."""
    row = store.row(
        "SELECT 1 FROM deliveries WHERE run = :run AND consumer = :name AND step = :step "
        "AND state IN (1, 2) LIMIT 1",
        step=step,
        **_named(consumer),
    )
    return row is not None


def _last_step(store: Store, consumer: Consumer, committed: int | None) -> int | None:
    """Returns the last step that has groups or that a checkpoint holds; None if there is no such
    step."""
    [(last,)] = store.rows(
        "SELECT max(step) FROM deliveries "
        "WHERE run = :run AND consumer = :name AND state IN (1, 2)",
        **_named(consumer),
    )
    return max((step for step in (last, committed) if step is not None), default=None)


def _members(store: Store, run: Run, tasks: list[int]) -> tuple[tuple[TrajectoryRow, ...], ...]:
    members: dict[int, list[TrajectoryRow]] = {task: [] for task in tasks}
    for row in runs.trajectories(store, run, ordinals=tasks) if tasks else []:
        members[row.ordinal].append(row)
    return tuple(tuple(members[task]) for task in tasks)


# --- what becomes of the groups


def dismiss(store: Store, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
    """Dismisses taken groups, named by their tasks: they will not be trained. Repeating the call
    changes nothing."""
    rules.check_reason(reason)
    committed = begin(store, consumer)
    known = _known(store, consumer, groups)
    tasks: list[int] = []
    wrong: list[str] = []
    for name in groups:
        task, state, step, before = known[name]
        if state == DeliveryState.DISMISSED and before == reason:
            continue
        if state != DeliveryState.TAKEN or not later_than(step, committed):
            wrong.append(name)
        tasks.append(task)
    if wrong:
        raise rules.not_taken(consumer.name, wrong)
    store.run(
        "UPDATE deliveries SET state = 2, reason = :reason "
        "WHERE run = :run AND consumer = :name AND task = ANY(:tasks)",
        reason=reason,
        tasks=tasks,
        **_named(consumer),
    )


def _known(store: Store, consumer: Consumer, names: Sequence[str]) -> dict[str, KnownGroup]:
    """Returns the consumer's row of each named group; `UNKNOWN` for a group that the consumer does
    not have."""
    rows = store.rows(
        "SELECT k.id, d.task, d.state, d.step, d.reason FROM tasks k "
        "JOIN deliveries d ON d.run = k.run AND d.task = k.ordinal AND d.consumer = :name "
        "WHERE k.run = :run AND k.id = ANY(:names)",
        names=list(set(names)),
        **_named(consumer),
    )
    known: dict[str, KnownGroup] = {row[0]: (row[1], row[2], row[3], row[4]) for row in rows}
    return {name: known.get(name, UNKNOWN) for name in names}


def commit(
    store: Store, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
) -> None:
    """Notes that a checkpoint with everything up to `step` is safe.

    `groups` names the groups of `take`, by their tasks, that were trained in `step`.
    """
    rules.check_step(step)
    committed = begin(store, consumer)
    if groups:
        known = _known(store, consumer, groups)
        fresh = fresh_tasks(consumer, step, known, committed=committed)
        _put_in_step(store, consumer, step, fresh)
    # Groups dismissed since the last commit belong to this step.
    store.run(
        "UPDATE deliveries SET step = :step "
        "WHERE run = :run AND consumer = :name AND step IS NULL AND state IN (1, 2) AND state = 2",
        step=step,
        **_named(consumer),
    )
    store.run(
        "UPDATE consumers SET committed = :step "
        "WHERE run = :run AND consumer = :name AND (committed IS NULL OR committed < :step)",
        step=step,
        **_named(consumer),
    )


def rewind(
    store: Store, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
) -> int:
    """Resets the consumer to the checkpoint of `step`, after a restore. Returns the number of
    groups that are given back.

    Groups of later steps are given back, and groups that the checkpoint holds count as trained.
    Groups without a step that were taken or dismissed since the last commit are given back too.
    `trained` names groups of `take`, by their tasks, that the checkpoint holds, each with its step.
    These groups are kept, even if no commit has named them.
    """
    rules.check_step(step)
    committed = begin(store, consumer)
    _hold(store, consumer, step, trained or {})
    returned = store.rows(
        "DELETE FROM deliveries WHERE run = :run AND consumer = :name "
        "AND state IN (1, 2) AND (step > :step OR step IS NULL) RETURNING settled",
        step=step,
        **_named(consumer),
    )
    # The restored checkpoint is the truth, whether or not its step or a later one was committed.
    holds = bool(step or trained) or committed is not None
    store.run(
        "UPDATE consumers SET committed = :committed WHERE run = :run AND consumer = :name",
        committed=step if holds else None,
        **_named(consumer),
    )
    if places := values_of(returned):
        store.run(
            "UPDATE consumers SET seen = :seen "
            "WHERE run = :run AND consumer = :name AND seen > :seen",
            seen=min(places) - 1,
            **_named(consumer),
        )
    return len(returned)


def _hold(store: Store, consumer: Consumer, step: int, trained: Mapping[str, int]) -> None:
    """Puts the groups that the checkpoint of `step` holds into their steps, including groups that
    no commit has named."""
    known = _known(store, consumer, list(trained)) if trained else {}
    steps: dict[int, list[int]] = {}
    wrong: list[str] = []
    for name, at in trained.items():
        task, state, before, _ = known[name]
        if state != DeliveryState.TAKEN:
            wrong.append(name)
        elif later_than(before, step):
            steps.setdefault(at, []).append(task)
    if wrong:
        raise rules.not_taken(consumer.name, wrong)
    for at, tasks in steps.items():
        _put_in_step(store, consumer, at, tasks)


# --- weight versions


def publish_version(
    store: Store, run: Run, name: str, *, step: int, digest: str, consumer: Consumer | None = None
) -> int:
    """Records a weight version before any engine gets the weights, and returns the version's
    ordinal.

    The same name and digest again give the same ordinal. The same name with another digest raises
    `UsageError`, so that a name always stands for the same bytes. If a `consumer` is given and has
    lost its lease, raises `LeaseLost`.
    """
    rules.check_version(name, step, digest)
    if consumer is not None:
        begin(store, consumer, "UPDATE")
    runs.lock(store, run)
    row = store.row(
        "SELECT ordinal, digest FROM versions WHERE run = :run AND name = :name",
        run=run.id,
        name=name,
    )
    if row is not None:
        return rules.known_version(run, name, digest, known=(row[0], row[1]))
    query = "SELECT coalesce(max(ordinal), 0) FROM versions WHERE run = :run"
    [(last,)] = store.rows(query, run=run.id)
    ordinal: int = last + 1
    columns = "run, ordinal, name, step, digest"
    store.insert("versions", columns, [(run.id, ordinal, name, step, digest)])
    return ordinal


# --- the ledger

_LEDGER = """SELECT k.id, k.ordinal, d.state, d.step, d.reason, g.settled
    FROM tasks k JOIN task_groups g ON g.run = k.run AND g.task = k.ordinal
    LEFT JOIN deliveries d ON d.run = k.run AND d.task = k.ordinal AND d.consumer = :name
    WHERE k.run = :run AND k.ordinal >= :since AND (g.current OR d.state IN (1, 2))
    ORDER BY k.ordinal"""


def ledger(store: Store, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
    """Returns the state of each admitted group from ordinal `since` on, in the order of tasks. The
    cost grows with the length of the returned list."""
    row = store.row(
        "SELECT committed FROM consumers WHERE run = :run AND consumer = :name",
        run=run.id,
        name=consumer,
    )
    committed = None if row is None else row[0]
    rows = store.rows(_LEDGER, run=run.id, name=consumer, since=min(since, MAX_TRAJECTORIES))
    return [
        LedgerEntry(
            runs.text_of(name, of=f"the name of task {ordinal}"),
            ordinal,
            *end_of(state, step, reason, committed=committed, settled=settled is not None),
        )
        for name, ordinal, state, step, reason, settled in rows
    ]


def consumers(store: Store, run: Run) -> list[str]:
    rows = store.rows(
        "SELECT consumer FROM consumers WHERE run = :run ORDER BY consumer", run=run.id
    )
    return [runs.text_of(name, of="the name of a consumer") for (name,) in rows]
