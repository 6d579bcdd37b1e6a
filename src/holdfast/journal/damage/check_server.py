"""Is a journal on a server whole? What the server does not look after by itself is verified.

Pages and indexes are PostgreSQL's (`pg_amcheck`, data checksums). What our writers rely on is
looked at here, in one snapshot: checksums and meaning of every log, heads, statuses, what is
counted of groups and runs, the ledger, blobs, and whether acknowledged commits were lost.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from holdfast.journal.damage.check import Report
from holdfast.journal.damage.logs import LogCheck, TrajectoryState
from holdfast.journal.journal import Cut, WorkerIdentity, digest_of
from holdfast.journal.lease_clock import with_lease_end
from holdfast.journal.postgres import logs, schema
from holdfast.journal.postgres.address import ServerAddress, address_of
from holdfast.journal.postgres.connection import Link, Row, ServerConnection, plain_connect
from holdfast.journal.postgres.errors import explain
from holdfast.journal.process import is_gone
from holdfast.journal.rows import places_of_moved, run_of, task_of
from holdfast.records.errors import HoldfastError, JournalCorrupt, RunHeld
from holdfast.records.history import History

READ_LOGS = 64
READ_BLOBS = 16
_REPORT = "please report it: no fault of a disk or a process explains it"
_RESTORE = "restore it from a backup"
_COUNT = "repair the journal: it is counted anew"
_TASKS = (
    "repair the journal: a task that is at another's place is put back; if that does not help, "
    f"{_RESTORE}"
)


async def check_server(where: str) -> Report:
    """Verifies the journal at that URL; what is no journal of ours raises instead."""
    address = address_of(where)
    report = Report(address.name)

    async def look(connection: ServerConnection) -> None:
        # Before the snapshot: what this machine notes meanwhile would be ahead of that.
        await _losses(connection, report)
        await connection.execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
            "SET LOCAL idle_in_transaction_session_timeout = 0"
        )
        for part in _PARTS:
            await part(connection, report)
        await connection.execute("ROLLBACK")

    await _with(address, look, read_only=True)
    return report


async def repair_server(where: str) -> tuple[list[Cut], str]:
    """Cuts torn logs to their last good record, counts groups anew, and accepts what is lost.

    What was cut, and what was given up. All of it is done, or nothing; `RunHeld` while a live
    worker holds a run.
    """
    address = address_of(where)
    made: list[Cut] = []
    given_up = ""

    async def mend(connection: ServerConnection) -> None:
        nonlocal given_up
        await connection.execute("BEGIN")
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await _refuse_if_held(connection)
        await _put_tasks_back(connection)
        made.extend([cut async for cut in _cut_all(connection)])
        for row in await connection.fetch("SELECT id FROM holdfast.runs ORDER BY id"):
            await _recount(connection, row["id"])
        given_up = await schema.accept_losses(connection)
        await connection.execute("COMMIT")

    await _with(address, mend)
    return made, given_up


async def _with(
    address: ServerAddress,
    do: Callable[[ServerConnection], Awaitable[None]],
    *,
    read_only: bool = False,
) -> None:
    async def ready(connection: ServerConnection) -> None:
        await schema.require(connection, address)

    link = Link(address, plain_connect, ready, read_only=read_only)
    try:
        await do(await link.get())
    except HoldfastError:
        raise
    except Exception as error:
        raise explain(error, address) from error
    finally:
        await link.close()


# --- what is looked at


async def _losses(connection: ServerConnection, report: Report) -> None:
    if losses := await schema.find_losses(connection):
        what = schema.describe_losses(losses)
        report.add("server", what, "go back to a server that has them, or accept it with --repair")


async def _size(connection: ServerConnection, report: Report) -> None:
    report.bytes = await connection.fetchval(
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'holdfast' AND c.relkind = 'r'"
    )


async def _runs(connection: ServerConnection, report: Report) -> None:
    rows = await connection.fetch("SELECT id, name, spec, changes, created FROM holdfast.runs")
    for row in rows:
        report.runs += 1
        try:
            run_of(row)
        except JournalCorrupt as error:
            report.add(f"run {row['name']!r}", str(error), _RESTORE)


async def _tasks(connection: ServerConnection, report: Report) -> None:
    last = (-1, -1)
    while rows := await connection.fetch(
        "SELECT run, ordinal, id, body, crc FROM holdfast.tasks WHERE (run, ordinal) > ($1, $2) "
        "ORDER BY run, ordinal LIMIT 500",
        *last,
    ):
        for row in rows:
            report.tasks += 1
            try:
                task_of(*tuple(row)[1:])
            except JournalCorrupt as error:
                report.add(f"run {row['run']}", str(error), _TASKS)
        last = (rows[-1]["run"], rows[-1]["ordinal"])


_TRAJECTORIES = """SELECT t.id, r.name AS run, k.id AS task, t.task AS ordinal, t.sample, t.status,
        t.settled IS NOT NULL AS settled, t.epoch, t.length
    FROM holdfast.trajectories t LEFT JOIN holdfast.runs r ON r.id = t.run
    LEFT JOIN holdfast.tasks k ON k.run = t.run AND k.ordinal = t.task
    WHERE t.id > $1 ORDER BY t.id LIMIT $2"""


async def _trajectories(connection: ServerConnection, report: Report) -> None:
    rows = await connection.fetch("SELECT digest FROM holdfast.blobs")
    blobs = {row["digest"] for row in rows}
    last = 0
    while rows := await connection.fetch(_TRAJECTORIES, last, READ_LOGS):
        found = await logs.rows_of(connection, [row["id"] for row in rows])
        for row in rows:
            report.trajectories += 1
            name = f"{row['run'] or '?'}/{row['task'] or row['ordinal']}/{row['sample']}"
            if row["run"] is None or row["task"] is None:
                report.add(name, "belongs to no run or no task of the journal", _REPORT)
            state = TrajectoryState(row["id"], name, row["status"], row["settled"], row["epoch"])
            _log(report, state, found[row["id"]], blobs)
        last = rows[-1]["id"]


def _log(
    report: Report,
    state: TrajectoryState,
    log: tuple[int | None, list[Row]],
    blobs: set[bytes],
) -> None:
    length, rows = log
    check = LogCheck(state, blobs.__contains__)
    report.findings += check.findings(
        (row["seq"], row["seq"], row["epoch"], row["crc"], row["body"]) for row in rows
    )
    report.records += len(rows)
    if not check.torn and length != len(rows):
        report.findings.append(check.short_by_head(length or 0))


async def _orphans(connection: ServerConnection, report: Report) -> None:
    for row in await connection.fetch(
        "SELECT r.trajectory, count(*) AS number FROM holdfast.records r "
        "LEFT JOIN holdfast.trajectories t ON t.id = r.trajectory WHERE t.id IS NULL "
        "GROUP BY r.trajectory"
    ):
        report.records += row["number"]
        what = f"{row['number']} records of a trajectory that is not there"
        report.add(f"trajectory {row['trajectory']}", what, _REPORT)


async def _blobs(connection: ServerConnection, report: Report) -> None:
    last = b""
    while rows := await connection.fetch(
        "SELECT digest, body FROM holdfast.blobs WHERE digest > $1 ORDER BY digest LIMIT $2",
        last,
        READ_BLOBS,
    ):
        for row in rows:
            report.blobs += 1
            if digest_of(row["body"]) != row["digest"]:
                report.add(
                    f"blob {row['digest'].hex()[:12]}",
                    "does not match its digest",
                    "restore it from a copy, or roll out anew what was restored from it",
                )
        last = rows[-1]["digest"]
    report.cuts = await connection.fetchval("SELECT count(*) FROM holdfast.cuts")


_GROUPS = """SELECT g.run, g.task FROM holdfast.task_groups g LEFT JOIN (
        SELECT run, task, count(*) AS members, count(*) - count(settled) AS open,
            count(*) FILTER (WHERE settled IS NULL AND owner IS NOT NULL) AS held,
            count(*) FILTER (WHERE settled IS NOT NULL AND status = 4) AS failed,
            max(settled) AS last
        FROM holdfast.trajectories GROUP BY run, task) f ON f.run = g.run AND f.task = g.task
    WHERE (g.members, g.open, g.held, g.failed) IS DISTINCT FROM
            (f.members, f.open, f.held, f.failed)
        OR g.settled IS DISTINCT FROM CASE WHEN f.open = 0 THEN f.last END"""
_TOTALS = """SELECT t.run FROM holdfast.totals t LEFT JOIN (
        SELECT run, sum(members) AS planned, sum(members - open) AS settled, sum(failed) AS failed
        FROM holdfast.task_groups WHERE current GROUP BY run) g ON g.run = t.run
    WHERE t.planned <> coalesce(g.planned, 0) OR t.settled <> coalesce(g.settled, 0)
        OR t.failed <> coalesce(g.failed, 0)"""
_SAMPLES = """SELECT run, task, count(*) AS number FROM (SELECT run, task, sample,
        row_number() OVER (PARTITION BY run, task ORDER BY id) - 1 AS planned
        FROM holdfast.trajectories) t
    WHERE sample <> planned GROUP BY run, task"""
_FIRST = """SELECT run, count(*) AS number FROM (SELECT run,
        row_number() OVER (PARTITION BY run ORDER BY id) AS planned,
        row_number() OVER (PARTITION BY run ORDER BY task) AS place
        FROM holdfast.trajectories WHERE sample = 0) t
    WHERE planned <> place GROUP BY run"""


async def _numbers(connection: ServerConnection, report: Report) -> None:
    for row in await connection.fetch(_SAMPLES):
        what = f"{row['number']} of its samples are not numbered 0, 1, 2, … as they were planned"
        report.add(f"run {row['run']}, task {row['task']}", what, _RESTORE)
    for row in await connection.fetch(_FIRST):
        what = (
            f"{row['number']} of its trajectories are not of the tasks that they were planned for"
        )
        report.add(f"run {row['run']}", what, _RESTORE)


_PLACES = """SELECT settled, count(*) AS number FROM holdfast.trajectories
    WHERE settled IS NOT NULL GROUP BY settled HAVING count(*) > 1"""


async def _counts(connection: ServerConnection, report: Report) -> None:
    for row in await connection.fetch(_GROUPS):
        what = f"task {row['task']} is counted wrongly"
        report.add(f"run {row['run']}", what, _COUNT)
    for row in await connection.fetch(_TOTALS):
        report.add(f"run {row['run']}", "how far it is, is counted wrongly", _COUNT)
    for row in await connection.fetch(_PLACES):
        what = f"{row['number']} trajectories have place {row['settled']} in the order of settling"
        report.add("ledger", what, _REPORT)


_DELIVERED = """SELECT r.name, d.consumer, d.task, d.step, count(t.id) AS members,
        count(*) FILTER (WHERE t.settled IS NOT NULL
            OR t.id IN (SELECT trajectory FROM holdfast.cuts)) AS settled
    FROM holdfast.deliveries d LEFT JOIN holdfast.runs r ON r.id = d.run
    LEFT JOIN holdfast.trajectories t ON t.run = d.run AND t.task = d.task
    WHERE d.state IN (1, 2) GROUP BY r.name, d.run, d.consumer, d.task, d.step"""
_BATCHES = """SELECT run, consumer, step, count(*) AS number FROM holdfast.deliveries
    WHERE place IS NOT NULL GROUP BY run, consumer, step
    HAVING max(place) + 1 <> count(*) OR count(DISTINCT place) <> count(*)"""
_STATES = """SELECT run, consumer, task, state FROM holdfast.deliveries
    WHERE state NOT IN (0, 1, 2, 3) OR (state IN (0, 3) AND step IS NOT NULL)
    OR (state IN (2, 3) AND reason = '')"""


async def _deliveries(connection: ServerConnection, report: Report) -> None:
    remedy = "rewind the consumer to a step before this one"
    for row in await connection.fetch(_DELIVERED):
        report.deliveries += 1
        if not row["members"] or row["members"] != row["settled"]:
            group = f"task {row['task']} of run {row['name']}"
            what = f"{group} was delivered before all its members were settled"
            report.add(f"consumer {row['consumer']}, step {row['step']}", what, remedy)
    for row in await connection.fetch(_BATCHES):
        what = f"the {row['number']} groups of its batch in run {row['run']} are not numbered"
        report.add(f"consumer {row['consumer']}, step {row['step']}", what, remedy)
    for row in await connection.fetch(_STATES):
        what = f"its entry for task {row['task']} of run {row['run']} makes no sense"
        report.add(f"consumer {row['consumer']}", what, remedy)


async def _versions(connection: ServerConnection, report: Report) -> None:
    for row in await connection.fetch(
        "SELECT run, count(*) AS number, max(ordinal) AS last FROM holdfast.versions "
        "GROUP BY run HAVING count(*) <> max(ordinal)"
    ):
        what = f"its {row['number']} weight versions are numbered up to {row['last']}"
        report.add(f"run {row['run']}", what, _REPORT)


_PARTS = (
    _size,
    _runs,
    _tasks,
    _numbers,
    _trajectories,
    _orphans,
    _blobs,
    _counts,
    _deliveries,
    _versions,
)


# --- repair


async def _refuse_if_held(connection: ServerConnection) -> None:
    for row in await connection.fetch(
        "SELECT r.name, w.host, w.pid, w.born, w.namespace, "
        "extract(epoch FROM w.lease_until - clock_timestamp())::double precision AS seconds "
        "FROM holdfast.workers w JOIN holdfast.runs r ON r.id = w.run "
        "WHERE NOT holdfast.is_expired(w.lease_until, w.lease_seconds)"
    ):
        worker = WorkerIdentity(row["host"], row["pid"], row["born"], row["namespace"])
        if not is_gone(worker):
            held = f"run {row['name']!r} is being worked on by "
            raise RunHeld(f"{held}{with_lease_end(worker, row['seconds'])}; stop it, then repair")


async def _put_tasks_back(connection: ServerConnection) -> None:
    """Tasks that are at each other's places, by way of places that nobody has."""
    for run in await connection.fetch("SELECT id FROM holdfast.runs ORDER BY id"):
        rows = await connection.fetch(
            "SELECT ordinal, body, crc FROM holdfast.tasks WHERE run = $1", run["id"]
        )
        moved = places_of_moved((row["ordinal"], row["body"], row["crc"]) for row in rows)
        await connection.execute(
            "UPDATE holdfast.tasks k SET ordinal = -1 - n.place "
            "FROM unnest($2::integer[], $3::integer[]) AS n(ordinal, place) "
            "WHERE k.run = $1 AND k.ordinal = n.ordinal",
            run["id"], list(moved), list(moved.values()),
        )  # fmt: skip
    await connection.execute("UPDATE holdfast.tasks SET ordinal = -1 - ordinal WHERE ordinal < 0")


async def _cut_all(connection: ServerConnection) -> AsyncIterator[Cut]:
    last = 0
    while rows := await connection.fetch(_TRAJECTORIES, last, READ_LOGS):
        for row in rows:
            name = f"{row['run']}/{row['task']}/{row['sample']}"
            history = History()
            cut = await logs.mend(connection, row["id"], name=name, history=history)
            if cut is not None:
                # A worker that still believes to hold it has the log as it was before.
                await connection.execute(
                    "UPDATE holdfast.trajectories SET owner = NULL, epoch = epoch + 1 "
                    "WHERE id = $1",
                    row["id"],
                )
                yield cut
            else:
                state = {"status": row["status"], "settled": row["settled"]}
                await logs.mend_status(connection, row["id"], history, **state)
        last = rows[-1]["id"]


async def _recount(connection: ServerConnection, run: int) -> None:
    await connection.execute(
        "SELECT holdfast.recount($1, (SELECT coalesce(array_agg(task), '{}') "
        "FROM holdfast.task_groups WHERE run = $1))",
        run,
    )
    await connection.execute(
        "UPDATE holdfast.totals SET (planned, settled, failed) = (SELECT "
        "coalesce(sum(members), 0), coalesce(sum(members - open), 0), coalesce(sum(failed), 0) "
        "FROM holdfast.task_groups WHERE run = $1 AND current) WHERE run = $1",
        run,
    )
