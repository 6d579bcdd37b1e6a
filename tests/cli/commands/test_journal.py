"""A journal that is damaged: said with its place and with what to do, never skipped."""

import json
import shutil
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from holdfast.journal.files.witness import Witness
from holdfast.journal.sqlite.schema import identity_of
from holdfast.records.exit_codes import Exit
from holdfast.testing import Fault, FaultKind
from support.cli.shell import CommandLine, start

FLIP = """UPDATE records SET body = CAST(substr(body, 1, 3) || x'ff' || substr(body, 5) AS BLOB)
    WHERE position = {position}"""


@pytest.fixture(scope="module")
def template(module_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("template"), module_engine)
    shell.finished_run()
    return shell


@pytest.fixture
def ran(shell, template):
    shutil.copy(template.journal, shell.journal)
    return shell


@pytest.fixture(scope="module")
def undisturbed(template):
    return template.export()


def position(shell, seq: int) -> int:
    """Where record `seq` of the first trajectory is."""
    rows = [row for row in shell.recorded()["records"] if row[1] == 1 and row[2] == seq]
    return rows[0][0]


def check(shell, *arguments) -> tuple[int, dict]:
    done = shell.holdfast("journal", "check", shell.journal, "--json", *arguments)
    assert done.err == ""
    return done.code, json.loads(done.out)


def test_a_clean_journal_is_told_so(ran):
    done = ran.holdfast("journal", "check", ran.journal)
    assert (done.code, done.err) == (0, "")
    assert "1 run, 2 tasks, 2 trajectories, " in done.out
    assert "every checksum and invariant holds" in done.out
    code, report = check(ran)
    assert (code, report["findings"], report["cuts_made"]) == (0, [], [])


def test_a_flipped_bit_is_found_and_a_repaired_run_ends_like_an_undisturbed_one(ran, undisturbed):
    place = position(ran, 2)
    ran.damage(FLIP.format(position=place))
    done = ran.holdfast("journal", "check", ran.journal)
    assert done.code == Exit.CORRUPT
    assert f"r/sum/0, record 2 (position {place}): fails its checksum" in done.out
    assert "--repair" in done.out
    assert check(ran)[0] == Exit.CORRUPT
    done = ran.holdfast("journal", "check", ran.journal, "--repair")
    assert done.code == Exit.OK, done.out
    assert f"cut r/sum/0 at record 2 (position {place}): fails its checksum" in done.out
    assert "every checksum and invariant holds" in done.out
    ran.finished_run()
    assert ran.export() == undisturbed
    assert ran.engine.stats().requests == 1, "the turn before the damage was kept"


def test_a_settled_trajectory_that_is_corrupt_is_told_by_every_command_that_reads_its_log(ran):
    place = position(ran, 2)
    ran.damage(FLIP.format(position=place))
    for arguments in (
        ("export", "r", "--what", "samples", "--out", "o"),
        ("export", "r", "--what", "trajectories", "--out", "o"),
        ("show", "r", "sum/0"),
    ):
        done = ran.holdfast(*arguments)
        assert done.code == Exit.CORRUPT, arguments
        assert "r/sum/0 is corrupt: record 2" in done.line
        assert f"(position {place})" in done.line
        assert "`holdfast journal check holdfast.db`" in done.line
        assert "--repair" in done.line
    assert not (ran.place / "o").exists()
    assert ran.holdfast("show", "r", "long-one/0").code == 0
    for command in (("show", "r"), ("runs",)):
        assert ran.holdfast(*command).code == 0, "it reads what the journal keeps beside the logs"


@pytest.mark.parametrize("damage", [FLIP, "UPDATE records SET body = substr(body, 1, 9) {0}"])
def test_a_torn_record_of_an_open_trajectory_is_cut_by_the_run_itself(shell, undisturbed, damage):
    """The trajectory was killed on its way; then its last record was torn."""
    shell.write("agent.py", (shell.place / "agent.py").read_text())
    done = shell.run("--quiet", env={"HOLDFAST_CRASH": "engine.finished:1"}, concurrency=1)
    assert done.code == -signal.SIGKILL
    shell.damage("DELETE FROM records WHERE trajectory = 1 AND seq >= 4")
    last = "(SELECT max(position) FROM records WHERE trajectory = 1)"
    shell.damage(f"UPDATE trajectories SET length = 4, last = {last} WHERE id = 1")
    shell.damage("UPDATE trajectories SET status = 1, settled = NULL WHERE id = 1")
    place = position(shell, 3)
    where = f"WHERE position = {place}"
    shell.damage(damage.format(where, position=place))
    requests = shell.engine.stats().requests
    done = shell.finished_run("--quiet")
    assert f"r/sum/0: record 3 at position {place} fails its checksum" in done.line
    assert "went on from the last good one" in done.line
    assert shell.export() == undisturbed
    assert shell.engine.stats().requests - requests <= 3
    assert check(shell)[1]["cuts"] == 1


def killed_run(shell) -> None:
    done = shell.run("--quiet", env={"HOLDFAST_CRASH": "engine.finished:1"}, concurrency=1)
    assert done.code == -signal.SIGKILL


def lose_log(shell, kind: str) -> None:
    log = shell.place / "holdfast.db-wal"
    content = bytearray(log.read_bytes())
    if kind == "removed":
        log.unlink()
        return
    if kind == "cut":
        del content[len(content) * 2 // 3 :]
    else:
        content[len(content) * 2 // 3] ^= 1
    log.write_bytes(content)


READERS = (
    ("export", "r", "--what", "samples", "--out", "o"),
    ("show", "r"),
    ("show", "r", "sum/0"),
    ("runs",),
    ("report", "r", "--out", "o.html"),
)


@pytest.mark.parametrize("kind", ["flipped", "cut", "removed"])
def test_commits_that_are_lost_stop_every_command_until_that_is_accepted(shell, undisturbed, kind):
    killed_run(shell)
    lose_log(shell, kind)
    left = {file.name: file.read_bytes() for file in shell.place.glob("holdfast.db*")}
    requests = shell.engine.stats().requests
    for arguments in (shell.arguments("--quiet"), *READERS):
        done = shell.holdfast(*arguments)
        assert done.code == Exit.CORRUPT, (arguments, done)
        assert "holdfast.db has lost " in done.line
        assert "holdfast journal check" in done.line
        assert "--repair" in done.line
    assert shell.engine.stats().requests == requests, "nothing was done again unseen"
    assert not (shell.place / "o").exists()
    done = shell.holdfast("journal", "check", shell.journal)
    assert done.code == Exit.CORRUPT
    assert "log: has lost " in done.out
    assert "commits, the last one of 20" in done.out
    for name in ("holdfast.db", "holdfast.db-wal"):
        assert left.get(name) == (shell.place / name).read_bytes() or kind == "removed"
    done = shell.holdfast("journal", "check", shell.journal, "--repair")
    assert done.code == Exit.OK, done
    assert "gave up: the journal has lost " in done.out
    code, report = check(shell)
    assert (code, report["findings"]) == (0, [])
    kept = [file for file in shell.place.glob("*.kept-*") if file.stat().st_size]
    assert len(kept) == (0 if kind == "removed" else 2), "the log and the file"
    shell.finished_run("--quiet")
    assert shell.export() == undisturbed
    assert check(shell)[0] == 0


def test_a_run_that_was_killed_between_its_commit_and_the_witness_of_it_goes_on(shell, undisturbed):
    done = shell.run("--quiet", env={"HOLDFAST_CRASH": "after:9"}, concurrency=1)
    assert done.code == -signal.SIGKILL
    assert check(shell)[0] == 0
    shell.finished_run("--quiet")
    assert shell.export() == undisturbed


def test_a_log_of_another_journal_is_not_exported_as_ours(shell, template, undisturbed):
    killed_run(shell)
    other = shell.place / "other"
    other.mkdir()
    foreign = CommandLine(other, shell.engine)
    foreign.tasks("foreign", "tasks")
    killed_run(foreign)
    mine = (shell.place / "holdfast.db-wal").read_bytes()
    (shell.place / "holdfast.db-wal").write_bytes((other / "holdfast.db-wal").read_bytes())
    for arguments in (shell.arguments("--quiet"), ("runs",), READERS[0]):
        done = shell.holdfast(*arguments)
        assert done.code == Exit.CORRUPT
        assert "the log (-wal) of another journal" in done.line
    code, report = check(shell)
    assert code == Exit.CORRUPT
    assert report["findings"][0]["where"] == "log"
    (shell.place / "holdfast.db-wal").write_bytes(mine)
    shell.finished_run("--quiet")
    assert shell.export() == undisturbed


def test_no_loss_is_accepted_while_someone_works(shell):
    """Its log is not taken away from under it."""
    shell.engine.set_faults(Fault(FaultKind.HOLD, matching="long"))
    with start(*shell.arguments("--quiet"), cwd=shell.place) as live:
        while shell.engine.stats().requests < 3:
            time.sleep(0.01)
        with closing(sqlite3.connect(f"file:{shell.journal}?mode=ro", uri=True)) as connection:
            ahead = Witness(shell.journal, identity_of(connection))
        ahead.note(10**6)
        ahead.close()
        log = (shell.place / "holdfast.db-wal").read_bytes()
        done = shell.holdfast("journal", "check", shell.journal, "--repair")
        log_after = (shell.place / "holdfast.db-wal").read_bytes()
        live.kill()
        live.communicate()
    assert done.code == Exit.HELD, done
    assert f"process {live.pid}" in done.line
    assert log_after.startswith(log)
