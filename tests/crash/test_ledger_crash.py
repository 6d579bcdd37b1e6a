"""SIGKILL at the writes of a stream, its weight versions and its ledger; resume; compare.

And at the migration of an older journal.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite import schema
from support.crash.killable_run import SIGKILLED
from support.paths import GOLDEN, SUPPORT
from support.records import sql

WORKLOAD = SUPPORT / "crash" / "ledger_workload.py"
KINDS = (
    "create_run",
    "admit",
    "publish_version",
    "subscribe",
    "next_batch",
    "take",
    "dismiss",
    "commit",
    "commit groups",
    "rewind",
    "rewind groups",
    "seal",
    "unsubscribe",
)


def train(folder: Path, plan: str = "") -> int:
    """The exit code of a training process."""
    command = [sys.executable, str(WORKLOAD), str(folder)]
    return subprocess.run([*command, *([plan] if plan else [])], check=False).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(folder) == 0
    assert check(folder / "journal.db").findings == []
    return folder


def kill_and_resume(undisturbed: Path, folder: Path, plan: str) -> bool:
    """False when the training ended before the crash point was reached."""
    code = train(folder, plan)
    if code == 0:
        return False
    assert code == SIGKILLED, plan
    assert train(folder) == 0, plan
    outcome, expected = (
        json.loads((place / "outcome.json").read_text()) for place in (folder, undisturbed)
    )
    assert outcome == expected, plan
    assert check(folder / "journal.db").findings == []
    return True


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_each_kind_of_write_changes_nothing(undisturbed, tmp_path, kind, when):
    kinds = json.loads((undisturbed / "kinds.json").read_text())
    places = [number for number, each in enumerate(kinds, 1) if each == kind]
    assert kill_and_resume(undisturbed, tmp_path, f"{when}:{places[len(places) // 2]}")


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", ["before", "after", "witnessed"])
def test_a_kill_at_every_write_changes_nothing(undisturbed, tmp_path, when):
    number = 1
    while kill_and_resume(undisturbed, tmp_path / str(number), f"{when}:{number}"):
        number += 1
    assert number > len(json.loads((undisturbed / "kinds.json").read_text()))


def test_every_write_of_the_training_is_counted(undisturbed):
    assert set(json.loads((undisturbed / "kinds.json").read_text())) >= set(KINDS)


# --- migration

# A version that nobody has: all there is of it is a table.
NEXT = schema.VERSION + 1
_MIGRATE = """
import sys
from pathlib import Path
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing import crash_points
schema.VERSION += 1
schema._MIGRATIONS[schema.VERSION] = ("CREATE TABLE next(id INTEGER)",)
if len(sys.argv) > 2:
    crash_points.arm(sys.argv[2])
SqliteJournal(Path(sys.argv[1]))
"""


def migrate(path: Path, *plan: str) -> int:
    command = [sys.executable, "-c", _MIGRATE, str(path), *plan]
    return subprocess.run(command, check=False).returncode


def is_next(path: Path) -> bool:
    """Whether the journal has the next version's mark; its table goes with that."""
    version = sql(path, "PRAGMA user_version")
    tables = sql(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'next'")
    assert (version, tables) in (([(NEXT - 1,)], [(0,)]), ([(NEXT,)], [(1,)]))
    return version == [(NEXT,)]


@pytest.mark.parametrize(("times", "reached"), [(1, False), (2, True)], ids=["before", "after"])
def test_a_kill_during_a_migration_leaves_all_of_it_or_nothing(
    tmp_path, monkeypatch, times, reached
):
    path = tmp_path / "journal.db"
    shutil.copy(GOLDEN / f"journal-v{schema.VERSION}.db", path)
    assert migrate(path, f"migrating:{times}") == SIGKILLED
    assert is_next(path) is reached
    assert migrate(path) == 0
    assert is_next(path)
    monkeypatch.setattr(schema, "VERSION", NEXT)
    assert check(path).findings == []
