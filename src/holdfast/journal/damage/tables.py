"""What has to hold outside the logs: rows that decode, numbers without gaps, whole indexes.

Every row is found without an index, because an index that lost an entry would hide the row. What
only an index knows is left to SQLite, which holds each one against its table.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from holdfast.journal.damage.logs import Finding
from holdfast.journal.rows import MisnamedTask, decode_name, run_of, task_of
from holdfast.journal.sqlite.runs import TASK, text_of
from holdfast.journal.sqlite.schema import GROUPS, SALVAGE, TOTALS, VERSION, prepare
from holdfast.records.errors import JournalCorrupt

FILE = "file, "
_ANEW = (
    f"repair the journal: what follows from the rows is made anew; if that does not help, {SALVAGE}"
)
_HEADS = "repair the journal: it is taken away, nothing is cut"
_NAMES = f"repair the journal: the task gets its name back; if that does not help, {SALVAGE}"
_TASKS = (
    "repair the journal: a task that is at another's place is put back; if that does not help, "
    "resume the run with its task file and accept the change: that writes the task anew"
)
_ROWS = "check the disk, and restore the journal from a copy; if the disk is sound, report it"


_SCHEMA = "SELECT name, CAST(sql AS BLOB) FROM sqlite_schema"


def schema(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Whether every table and index is what a new journal has; one of an older version passes."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        prepare(new, ":memory:")
        expected = new.execute(_SCHEMA).fetchall()
    found = set(connection.execute(_SCHEMA).fetchall())
    for name, _ in (each for each in expected if each not in found):
        yield Finding(f"{FILE}schema", f"{name} is not what it was made as", SALVAGE)


INDEXED = frozenset({"batches", "blobs", "counters", "runs", "tasks", "trajectories"})
"""Tables with indexes that can be made anew: another check finds rows that are not whole. Of a
delivery, the index may know better than the row."""
DERIVED = frozenset({"heads", "links", "task_groups", "totals"})
"""Tables that say nothing that records and trajectories do not say."""
COUNTED = {"task_groups": GROUPS, "totals": TOTALS}
"""Tables that are kept so that nothing has to be counted, and how it would be."""


def indexes(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Table by table: one that cannot be read does not hide what is wrong with the others.

    The table of the records, the large one, has no index, and is not read here.
    """
    tables = connection.execute(
        "SELECT DISTINCT tbl_name FROM sqlite_schema WHERE type = 'index' "
        "OR tbl_name IN ('heads', 'links', 'task_groups', 'totals') ORDER BY 1"
    ).fetchall()
    for (table,) in tables:
        remedy = _ANEW if table in INDEXED | DERIVED else SALVAGE
        try:
            for (line,) in connection.execute(f"PRAGMA integrity_check('{table}')"):
                if line != "ok":
                    yield Finding(f"{FILE}{table}", line, remedy)
        except sqlite3.Error as error:
            yield Finding(f"{FILE}{table}", f"its indexes cannot be read: {error}", remedy)


def runs(connection: sqlite3.Connection) -> Iterator[Finding | None]:
    """For each run what is wrong with it."""
    for name, *row in connection.execute(
        "SELECT CAST(name AS BLOB), id, CAST(spec AS BLOB), CAST(changes AS BLOB), created "
        "FROM runs NOT INDEXED"
    ):
        try:
            run_of((row[0], text_of(name, of=f"the name of run {row[0]}"), *row[1:]))
        except JournalCorrupt as error:
            yield Finding(f"run {decode_name(name)}", str(error), SALVAGE)
        else:
            yield None


def tasks(connection: sqlite3.Connection) -> Iterator[Finding | None]:
    """For each task what is wrong with it."""
    for run, current, *row in connection.execute(
        f"SELECT CAST(coalesce(r.name, '?') AS BLOB), k.current, {TASK} FROM tasks k NOT INDEXED "  # noqa: S608 - TASK is ours
        "LEFT JOIN runs r ON r.id = k.run"
    ):
        where = f"task {decode_name(run)}/{decode_name(row[1])}"
        try:
            task_of(*row)
        except MisnamedTask as error:
            yield Finding(where, str(error), _NAMES)
        except JournalCorrupt as error:
            yield Finding(where, str(error), _TASKS)
        else:
            known = current in (0, 1)
            yield None if known else Finding(where, "neither rests nor is current", _TASKS)


# Numbers that the writers give out, without gaps and never twice.
_TASK_NUMBERS = """SELECT run, count(*) FROM tasks NOT INDEXED GROUP BY run
    HAVING min(ordinal) != 0 OR max(ordinal) + 1 != count(*) OR count(DISTINCT ordinal) != count(*)
    OR count(DISTINCT id) != count(*)"""
_SAMPLES = """SELECT run, task, count(*) FROM (SELECT run, task, sample,
        row_number() OVER (PARTITION BY run, task ORDER BY id) - 1 AS planned
        FROM trajectories NOT INDEXED)
    WHERE sample IS NOT planned GROUP BY run, task"""
_FIRST = """SELECT run, count(*) FROM (SELECT run,
        row_number() OVER (PARTITION BY run ORDER BY id) AS planned,
        row_number() OVER (PARTITION BY run ORDER BY task) AS place
        FROM trajectories NOT INDEXED WHERE sample = 0)
    WHERE planned != place GROUP BY run"""
_WITHOUT_SAMPLES = """SELECT run, ordinal FROM tasks NOT INDEXED
    EXCEPT SELECT run, task FROM trajectories NOT INDEXED"""
_SETTLED = """SELECT settled, count(*) FROM trajectories NOT INDEXED WHERE settled IS NOT NULL
    GROUP BY settled HAVING count(*) > 1 OR typeof(settled) != 'integer' OR settled < 1
    OR settled > coalesce((SELECT value FROM counters NOT INDEXED WHERE name = 'settled'), 0)"""
STRAY_HEADS = """SELECT h.trajectory FROM heads h
    LEFT JOIN trajectories t ON t.id = h.trajectory LEFT JOIN records r ON r.position = h.position
    WHERE t.id IS NULL AND r.trajectory IS NOT h.trajectory"""


def numbers(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Needs no index: where it finds something, the rows themselves are damaged."""
    for run, count in connection.execute(_TASK_NUMBERS):
        what = f"its {count} tasks do not have numbers 0, 1, 2, … and a name each"
        yield Finding(f"run {run}", what, _ROWS)
    for run, task, count in connection.execute(_SAMPLES):
        what = f"{count} of its samples are not numbered 0, 1, 2, … as they were planned"
        yield Finding(f"run {run}, task {task}", what, _ROWS)
    for run, count in connection.execute(_FIRST):
        what = f"{count} of its trajectories are not of the tasks that they were planned for"
        yield Finding(f"run {run}", what, _ROWS)
    for run, task in connection.execute(_WITHOUT_SAMPLES):
        yield Finding(f"run {run}, task {task}", "has no trajectory", _ROWS)
    for place, count in connection.execute(_SETTLED):
        what = f"{count} trajectories have place {place!r:.20} in the order of settling"
        yield Finding(f"{FILE}trajectories", what, _ROWS)


def stray_heads(connection: sqlite3.Connection) -> Iterator[Finding]:
    """A trajectory that is planned one day would be given such a head for its own."""
    for (trajectory,) in connection.execute(STRAY_HEADS):
        what = f"is the head of trajectory {trajectory}, which is not there"
        yield Finding(f"{FILE}heads", what, _HEADS)


def counts(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Whether what is kept as a count is what counting gives."""
    for table, select in COUNTED.items():
        wrong = connection.execute(
            f"SELECT run FROM (SELECT * FROM ({select}) EXCEPT SELECT * FROM {table}) "  # noqa: S608 - ours
            f"UNION SELECT run FROM (SELECT * FROM {table} EXCEPT SELECT * FROM ({select})) "
            "ORDER BY 1"
        ).fetchall()
        if wrong:
            runs = ", ".join(str(run) for (run,) in wrong)
            what = f"does not count what is there, in run {runs}"
            yield Finding(f"{FILE}{table}", what, _ANEW)


_VERSION_NUMBERS = """SELECT v.run, count(*) FROM versions v LEFT JOIN runs r ON r.id = v.run
    GROUP BY v.run HAVING min(v.ordinal) != 1 OR max(v.ordinal) != count(*) OR r.id IS NULL
    OR count(DISTINCT v.ordinal) != count(*) OR count(DISTINCT v.name) != count(*)"""


def versions(connection: sqlite3.Connection) -> Iterator[Finding]:
    for run, count in connection.execute(_VERSION_NUMBERS):
        what = f"its {count} weight versions do not have numbers 1, 2, 3, … and a name each"
        yield Finding(f"run {run}", what, _ROWS)
    for (run,) in connection.execute("SELECT run FROM streams EXCEPT SELECT id FROM runs"):
        yield Finding(f"run {run}", "takes tasks, and is not there", _ROWS)
