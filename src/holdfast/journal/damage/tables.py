"""The rules for the tables that every journal has, from rows that decode to the ledger.

The checks write nothing. They read rows without an index (`NOT INDEXED`), because an index that
lost an entry would hide the row. A finding never ends the check. Only a few logs are in memory at a
time, for journals of any size.
"""

from collections.abc import Callable, Iterable, Iterator

from holdfast.journal.damage.logs import LogCheck, TrajectoryState
from holdfast.journal.damage.report import Report
from holdfast.journal.lease_clock import with_lease_end
from holdfast.journal.rows import MisnamedTask, places_of_moved, shown, task_of
from holdfast.journal.sql.deletion import holders
from holdfast.journal.sql.groups import COUNTED, recount, recount_totals
from holdfast.journal.sql.runs import run_of
from holdfast.journal.sql.store import LogRow, Row, Store
from holdfast.journal.types import digest_of
from holdfast.records.errors import JournalCorrupt, RunHeld

ROWS = "check the disk, and restore the journal from a copy; if the disk is sound, report it"
FILE = "file, "
_NAMES = "repair the journal: the task gets its name back; if that does not help, "
_TASKS = (
    "repair the journal: a task that is at another's place is put back; if that does not help, "
    "resume the run with its task file and accept the change: that writes the task anew"
)
_NUMBER_AGAIN = "repair the journal: the samples are numbered again in the order of planning"
_REPORT = "please report it: no fault of a disk or a process explains it"
_REWIND = "rewind the consumer to a step before this one"
READ_LOGS = 64

Part = Callable[[Store, Report], None]


def check_tables(store: Store, report: Report, *, first: Iterable[Part] = ()) -> None:
    """Checks the tables, after running the checks in `first`."""
    for part in (*first, *_PARTS):
        try:
            part(store, report)
        except Exception as error:  # A damaged page can turn a column into anything.
            what = f"cannot be read: {type(error).__name__}: {error}"
            report.add(f"{FILE}{part.__name__.strip('_')}", what, report.salvage)


def _runs(store: Store, report: Report) -> None:
    for row in store.stream("SELECT name, id, spec, changes, created FROM runs NOT INDEXED"):
        report.runs += 1
        try:
            run_of(row)
        except JournalCorrupt as error:
            report.add(f"run {shown(row[0])}", str(error), report.salvage)


def _tasks(store: Store, report: Report) -> None:
    for run, current, *row in store.stream(
        "SELECT coalesce(r.name, '?'), k.current, k.ordinal, k.id, k.body, k.crc "
        "FROM tasks k NOT INDEXED LEFT JOIN runs r ON r.id = k.run"
    ):
        report.tasks += 1
        where = f"task {shown(run)}/{shown(row[1])}"
        try:
            task_of(*row)
        except MisnamedTask as error:
            report.add(where, str(error), f"{_NAMES}{report.salvage}")
        except JournalCorrupt as error:
            report.add(where, str(error), _TASKS)
        if current not in (0, 1):
            report.add(where, "neither rests nor is current", _TASKS)


# --- numbers that the writers give out, without gaps and never twice

_TASK_NUMBERS = """SELECT run, count(*) FROM tasks NOT INDEXED GROUP BY run
    HAVING min(ordinal) <> 0 OR max(ordinal) + 1 <> count(*) OR count(DISTINCT ordinal) <> count(*)
    OR count(DISTINCT id) <> count(*)"""
# Only groups with as many members as their count says: in others, a trajectory may belong to
# another task, and each number after it would be wrong.
_MISNUMBERED = """FROM (SELECT id, run, task, sample,
        count(*) OVER (PARTITION BY run, task) AS there,
        row_number() OVER (PARTITION BY run, task ORDER BY id) - 1 AS planned
        FROM trajectories NOT INDEXED) t LEFT JOIN task_groups g
        ON g.run = t.run AND g.task = t.task AND g.members = t.there
    WHERE t.sample <> t.planned"""
_SAMPLES = f"SELECT t.run, t.task, count(*), count(g.task) {_MISNUMBERED} GROUP BY t.run, t.task"
_PLANNED = f"SELECT t.id, t.planned {_MISNUMBERED} AND g.task IS NOT NULL"
_FIRST = """SELECT run, count(*) FROM (SELECT run,
        row_number() OVER (PARTITION BY run ORDER BY id) AS planned,
        row_number() OVER (PARTITION BY run ORDER BY task) AS place
        FROM trajectories NOT INDEXED WHERE sample = 0) t
    WHERE planned <> place GROUP BY run"""
_WITHOUT_SAMPLES = """SELECT run, ordinal FROM tasks NOT INDEXED
    EXCEPT SELECT run, task FROM trajectories NOT INDEXED"""
_SETTLED = """SELECT settled, count(*) FROM trajectories NOT INDEXED WHERE settled IS NOT NULL
    GROUP BY settled HAVING count(*) > 1 OR settled < 1
    OR settled > coalesce((SELECT value FROM counters NOT INDEXED WHERE name = 'settled'), 0)"""
_VERSION_NUMBERS = """SELECT v.run, count(*) FROM versions v LEFT JOIN runs r ON r.id = v.run
    GROUP BY v.run HAVING min(v.ordinal) <> 1 OR max(v.ordinal) <> count(*)
    OR count(r.id) <> count(*) OR count(DISTINCT v.name) <> count(*)"""


def _numbers(store: Store, report: Report) -> None:
    for where, what, remedy in _number_faults(store):
        report.add(where, what, remedy)


def has_whole_rows(store: Store) -> bool:
    """Returns whether every number that writers gave to a row still exists or can be restored. The
    number of a sample can be restored if the task still has all of its samples."""
    return all(remedy == _NUMBER_AGAIN for _, _, remedy in _number_faults(store))


def _number_faults(store: Store) -> Iterator[tuple[str, str, str]]:
    """Yields each wrong number: its place, the fault, and the remedy."""
    for where, what in _lost_numbers(store):
        yield where, what, ROWS
    for run, task, count, counted in store.rows(_SAMPLES):
        what = f"{count} of its samples are not numbered 0, 1, 2, … as they were planned"
        yield f"run {run}, task {task}", what, _NUMBER_AGAIN if counted else ROWS


def _lost_numbers(store: Store) -> Iterator[tuple[str, str]]:
    for run, count in store.rows(_TASK_NUMBERS):
        yield f"run {run}", f"its {count} tasks do not have numbers 0, 1, 2, … and a name each"
    for run, count in store.rows(_FIRST):
        what = f"{count} of its trajectories are not of the tasks that they were planned for"
        yield f"run {run}", what
    for run, task in store.rows(_WITHOUT_SAMPLES):
        yield f"run {run}, task {task}", "has no trajectory"
    for place, count in store.rows(_SETTLED):
        what = f"{count} trajectories have place {place!r:.20} in the order of settling"
        yield f"{FILE}trajectories", what
    for run, count in store.rows(_VERSION_NUMBERS):
        what = f"its {count} weight versions do not have numbers 1, 2, 3, … and a name each"
        yield f"run {run}", what
    for (run,) in store.rows("SELECT run FROM streams EXCEPT SELECT id FROM runs"):
        yield f"run {run}", "takes tasks, and is not there"


# --- what is kept as a count of other rows

_KEPT = "SELECT run, task, members, open, held, failed, settled FROM task_groups"
_COUNTED = f"{COUNTED} NOT INDEXED GROUP BY run, task"
_OTHER_CURRENT = """SELECT g.run FROM task_groups g
    JOIN tasks k ON k.run = g.run AND k.ordinal = g.task WHERE g.current <> k.current"""
_TOTALS = """SELECT run, coalesce(sum(CASE WHEN current THEN members ELSE 0 END), 0),
        coalesce(sum(CASE WHEN current THEN members - open ELSE 0 END), 0),
        coalesce(sum(CASE WHEN current THEN failed ELSE 0 END), 0) FROM task_groups GROUP BY run"""
_KEPT_TOTALS = "SELECT run, planned, settled, failed FROM totals WHERE planned > 0"


COUNTS = {"task_groups": (_KEPT, _COUNTED), "totals": (_KEPT_TOTALS, _TOTALS)}
"""Tables that store counts, each with the query for the stored counts and the query that counts."""


def _counts(store: Store, report: Report) -> None:
    for table, runs in wrong_counts(store):
        what = f"does not count what is there, in run {', '.join(map(str, runs))}"
        report.add(f"{FILE}{table}", what, report.anew)


def wrong_counts(store: Store) -> Iterator[tuple[str, list[int]]]:
    """Yields the name of each table whose stored counts are wrong, with the runs that have wrong
    counts."""
    for table, (kept, counted) in COUNTS.items():
        rows = store.rows(f"{kept} EXCEPT {counted}") + store.rows(f"{counted} EXCEPT {kept}")
        if table == "task_groups":
            rows += store.rows(_OTHER_CURRENT)
        if rows:
            yield table, sorted({row[0] for row in rows}, key=str)


# --- trajectories and their logs

_TRAJECTORIES = """SELECT t.id, r.name, k.id, t.task, t.sample, t.status, t.settled IS NOT NULL,
        t.epoch, t.summary FROM trajectories t LEFT JOIN runs r ON r.id = t.run
    LEFT JOIN tasks k ON k.run = t.run AND k.ordinal = t.task ORDER BY t.id"""


def named_trajectories(store: Store) -> Iterator[tuple[str, Row]]:
    """Yields each trajectory with a name for messages."""
    for row in store.stream(_TRAJECTORIES):
        _, run, task, ordinal, sample, *_ = row
        yield f"{shown(run or '?')}/{shown(task or ordinal)}/{sample}", row


def _trajectories(store: Store, report: Report) -> None:
    states = []
    for name, row in named_trajectories(store):
        number, run, task, _, _, status, settled, epoch, summary = row
        report.trajectories += 1
        if not isinstance(status, int) or not isinstance(epoch, int):
            report.add(name, "has a row that does not decode", report.salvage)
            continue
        if run is None or task is None:
            report.add(name, "belongs to no run or no task of the journal", _REPORT)
        states.append(TrajectoryState(number, name, status, bool(settled), epoch, summary))
    for at in range(0, len(states), READ_LOGS):
        some = {state.id: state for state in states[at : at + READ_LOGS]}
        for trajectory, rows in store.logs_to_check(list(some)):
            _log(store, report, some[trajectory], rows)


def _log(store: Store, report: Report, state: TrajectoryState, rows: Iterable[LogRow]) -> None:
    def has_blob(digest: bytes) -> bool:
        return store.row("SELECT 1 FROM blobs WHERE digest = :d", d=digest) is not None

    check = LogCheck(state, has_blob)
    report.findings += check.findings(rows)
    report.records += len(check.positions)
    if not check.torn:
        counted, is_linked = store.head_of(state.id, check.positions)
        report.findings += check.wrong_head(counted, is_linked=is_linked)


def _orphans(store: Store, report: Report) -> None:
    for trajectory, number in store.rows(
        "SELECT r.trajectory, count(*) FROM records r LEFT JOIN trajectories t "
        "ON t.id = r.trajectory WHERE t.id IS NULL GROUP BY r.trajectory"
    ):
        report.records += number
        what = f"{number} records of a trajectory that is not there"
        report.add(f"trajectory {trajectory}", what, _REPORT)


def _blobs(store: Store, report: Report) -> None:
    for digest, body in store.stream("SELECT digest, body FROM blobs"):
        report.blobs += 1
        if not isinstance(body, bytes) or digest_of(body) != digest:
            name = digest.hex()[:12] if isinstance(digest, bytes) else "?"
            remedy = "restore it from a copy, or roll out anew what was restored from it"
            report.add(f"blob {name}", "does not match its digest", remedy)
    row = store.row("SELECT count(*) FROM cuts")
    report.cuts = row[0] if row else 0


# --- the ledger

# If a repair has cut a member, the member is open again although its group was delivered.
_DELIVERED = """SELECT coalesce(r.name, '?'), d.consumer, d.task, d.step, count(t.id),
        count(CASE WHEN t.settled IS NOT NULL OR t.id IN (SELECT trajectory FROM cuts) THEN 1 END)
    FROM deliveries d LEFT JOIN runs r ON r.id = d.run
    LEFT JOIN trajectories t ON t.run = d.run AND t.task = d.task
    WHERE d.state IN (1, 2) GROUP BY r.name, d.run, d.consumer, d.task, d.step"""
_TWICE = """SELECT run, consumer, task, count(*) FROM deliveries NOT INDEXED
    GROUP BY run, consumer, task HAVING count(*) > 1"""
_PLACES = """SELECT run, consumer, step, count(*) FROM deliveries WHERE place IS NOT NULL
    GROUP BY run, consumer, step
    HAVING max(place) + 1 <> count(*) OR count(DISTINCT place) <> count(*)"""
_STATES = """SELECT run, consumer, task, state FROM deliveries
    WHERE state NOT IN (1, 2, 3) OR (state = 3 AND step IS NOT NULL)
    OR (state IN (2, 3) AND reason = '') OR settled < 0"""


def _deliveries(store: Store, report: Report) -> None:
    for run, consumer, task, step, members, settled in store.stream(_DELIVERED):
        report.deliveries += 1
        if not members or members != settled:
            group = f"task {task} of run {shown(run)}"
            what = f"{group} was delivered before all its members were settled"
            report.add(f"consumer {shown(consumer)}, step {step}", what, _REWIND)
    for run, consumer, task, times in store.rows(_TWICE):
        what = f"task {task} of run {run} was delivered {times} times"
        report.add(f"consumer {shown(consumer)}", what, _REWIND)
    for run, consumer, step, number in store.rows(_PLACES):
        what = f"the {number} groups of its batch in run {run} are not numbered 0, 1, 2, …"
        report.add(f"consumer {shown(consumer)}, step {step}", what, _REWIND)
    for run, consumer, task, state in store.rows(_STATES):
        what = f"its entry for task {task} of run {run} makes no sense (state {state!r:.20})"
        report.add(f"consumer {shown(consumer)}", what, _REWIND)


def _consumers(store: Store, report: Report) -> None:
    for run, consumer in store.rows(
        "SELECT c.run, c.consumer FROM consumers c LEFT JOIN runs r ON r.id = c.run "
        "WHERE r.id IS NULL OR c.committed < 0"
    ):
        report.add(
            f"consumer {shown(consumer)}", f"its commit in run {run} makes no sense", _REPORT
        )


_PARTS: tuple[Part, ...] = (
    _runs,
    _tasks,
    _numbers,
    _counts,
    _trajectories,
    _orphans,
    _blobs,
    _deliveries,
    _consumers,
)


# --- what can be mended in any journal


def refuse_if_held(store: Store) -> None:
    """Raises `RunHeld` while a live worker holds a run."""
    for run, worker, seconds, _ in holders(store, "workers"):
        held = f"run {run!r} is being worked on by {with_lease_end(worker, seconds)}"
        raise RunHeld(f"{held}; stop it, then repair")


def put_tasks_back(store: Store) -> None:
    """Moves tasks that swapped places back to their own places. Gives them negative places first,
    because two tasks cannot have one place at the same time."""
    for (run,) in store.rows("SELECT id FROM runs ORDER BY id"):
        tasks = store.rows(
            "SELECT ordinal, body, crc FROM tasks NOT INDEXED WHERE run = :run", run=run
        )
        store.run_many(
            "UPDATE tasks SET ordinal = :aside WHERE run = :run AND ordinal = :place",
            [
                {"run": run, "place": place, "aside": -1 - right}
                for place, right in places_of_moved(tasks).items()
            ],
        )
    store.run("UPDATE tasks SET ordinal = -1 - ordinal WHERE ordinal < 0")


def number_samples_again(store: Store) -> None:
    """Gives the samples of each task their planned numbers. Gives them negative numbers first,
    because two samples cannot have one number at the same time."""
    planned = store.rows(_PLANNED)
    for numbers in ([-1 - number for _, number in planned], [number for _, number in planned]):
        store.run_many(
            "UPDATE trajectories SET sample = :number WHERE id = :id",
            [
                {"id": row[0], "number": number}
                for row, number in zip(planned, numbers, strict=True)
            ],
        )


def count_anew(store: Store) -> None:
    """Rebuilds the tables whose content can be computed from other tables."""
    store.run("DELETE FROM task_groups")
    store.run("DELETE FROM totals")
    tasks = store.rows("SELECT run, ordinal, current FROM tasks NOT INDEXED")
    store.insert("task_groups", "run, task, current", tasks)
    store.insert("totals", "run", store.rows("SELECT id FROM runs"))
    for run in sorted({run for run, *_ in tasks}):
        recount(store, run, [task for of_run, task, _ in tasks if of_run == run])
        recount_totals(store, run)
