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
from support.cli.shell import Lab, start

FLIP = """UPDATE records SET body = CAST(substr(body, 1, 3) || x'ff' || substr(body, 5) AS BLOB)
    WHERE position = {position}"""


@pytest.fixture(scope="module")
def template(module_engine, tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("template"), module_engine)
    lab.finished_run()
    return lab


@pytest.fixture
def ran(lab, template):
    shutil.copy(template.journal, lab.journal)
    return lab


@pytest.fixture(scope="module")
def undisturbed(template):
    return template.export()


def position(lab, seq: int) -> int:
    """Where record `seq` of the first trajectory is."""
    rows = [row for row in lab.recorded()["records"] if row[1] == 1 and row[2] == seq]
    return rows[0][0]


def check(lab, *words) -> tuple[int, dict]:
    done = lab.holdfast("journal", "check", lab.journal, "--json", *words)
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
    for words in (
        ("export", "r", "--what", "samples", "--out", "o"),
        ("export", "r", "--what", "trajectories", "--out", "o"),
        ("show", "r", "sum/0"),
    ):
        done = ran.holdfast(*words)
        assert done.code == Exit.CORRUPT, words
        assert "r/sum/0 is corrupt: record 2" in done.line
        assert f"(position {place})" in done.line
        assert "`holdfast journal check holdfast.db`" in done.line
        assert "--repair" in done.line
    assert not (ran.place / "o").exists()
    assert ran.holdfast("show", "r", "long-one/0").code == 0
    for words in (("show", "r"), ("runs",)):
        assert ran.holdfast(*words).code == 0, "it reads what the journal keeps beside the logs"


@pytest.mark.parametrize("damage", [FLIP, "UPDATE records SET body = substr(body, 1, 9) {0}"])
def test_a_torn_record_of_an_open_trajectory_is_cut_by_the_run_itself(lab, undisturbed, damage):
    """The trajectory was killed on its way; then its last record was torn."""
    lab.write("agent.py", (lab.place / "agent.py").read_text())
    done = lab.run("--quiet", env={"HOLDFAST_CRASH": "engine.finished:1"}, concurrency=1)
    assert done.code == -signal.SIGKILL
    lab.damage("DELETE FROM records WHERE trajectory = 1 AND seq >= 4")
    last = "(SELECT max(position) FROM records WHERE trajectory = 1)"
    lab.damage(f"UPDATE trajectories SET length = 4, last = {last} WHERE id = 1")
    lab.damage("UPDATE trajectories SET status = 1, settled = NULL WHERE id = 1")
    place = position(lab, 3)
    where = f"WHERE position = {place}"
    lab.damage(damage.format(where, position=place))
    requests = lab.engine.stats().requests
    done = lab.finished_run("--quiet")
    assert f"r/sum/0: record 3 at position {place} fails its checksum" in done.line
    assert "went on from the last good one" in done.line
    assert lab.export() == undisturbed
    assert lab.engine.stats().requests - requests <= 3
    assert check(lab)[1]["cuts"] == 1


def killed_run(lab) -> None:
    done = lab.run("--quiet", env={"HOLDFAST_CRASH": "engine.finished:1"}, concurrency=1)
    assert done.code == -signal.SIGKILL


def lose_log(lab, kind: str) -> None:
    log = lab.place / "holdfast.db-wal"
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
def test_commits_that_are_lost_stop_every_command_until_that_is_accepted(lab, undisturbed, kind):
    killed_run(lab)
    lose_log(lab, kind)
    left = {file.name: file.read_bytes() for file in lab.place.glob("holdfast.db*")}
    asked = lab.engine.stats().requests
    for words in (lab.words("--quiet"), *READERS):
        done = lab.holdfast(*words)
        assert done.code == Exit.CORRUPT, (words, done)
        assert "holdfast.db has lost " in done.line
        assert "holdfast journal check" in done.line
        assert "--repair" in done.line
    assert lab.engine.stats().requests == asked, "nothing was done again unseen"
    assert not (lab.place / "o").exists()
    done = lab.holdfast("journal", "check", lab.journal)
    assert done.code == Exit.CORRUPT
    assert "log: has lost " in done.out
    assert "commits, the last one of 20" in done.out
    for name in ("holdfast.db", "holdfast.db-wal"):
        assert left.get(name) == (lab.place / name).read_bytes() or kind == "removed"
    done = lab.holdfast("journal", "check", lab.journal, "--repair")
    assert done.code == Exit.OK, done
    assert "gave up: the journal has lost " in done.out
    code, report = check(lab)
    assert (code, report["findings"]) == (0, [])
    kept = [file for file in lab.place.glob("*.kept-*") if file.stat().st_size]
    assert len(kept) == (0 if kind == "removed" else 2), "the log and the file"
    lab.finished_run("--quiet")
    assert lab.export() == undisturbed
    assert check(lab)[0] == 0


def test_a_run_that_was_killed_between_its_commit_and_the_witness_of_it_goes_on(lab, undisturbed):
    done = lab.run("--quiet", env={"HOLDFAST_CRASH": "after:9"}, concurrency=1)
    assert done.code == -signal.SIGKILL
    assert check(lab)[0] == 0
    lab.finished_run("--quiet")
    assert lab.export() == undisturbed


def test_a_log_of_another_journal_is_not_exported_as_ours(lab, template, undisturbed):
    killed_run(lab)
    other = lab.place / "other"
    other.mkdir()
    foreign = Lab(other, lab.engine)
    foreign.tasks("foreign", "tasks")
    killed_run(foreign)
    mine = (lab.place / "holdfast.db-wal").read_bytes()
    (lab.place / "holdfast.db-wal").write_bytes((other / "holdfast.db-wal").read_bytes())
    for words in (lab.words("--quiet"), ("runs",), READERS[0]):
        done = lab.holdfast(*words)
        assert done.code == Exit.CORRUPT
        assert "the log (-wal) of another journal" in done.line
    code, report = check(lab)
    assert code == Exit.CORRUPT
    assert report["findings"][0]["where"] == "log"
    (lab.place / "holdfast.db-wal").write_bytes(mine)
    lab.finished_run("--quiet")
    assert lab.export() == undisturbed


def test_no_loss_is_accepted_while_someone_works(lab):
    """Its log is not taken away from under it."""
    lab.engine.set_faults(Fault(FaultKind.HOLD, matching="long"))
    with start(*lab.words("--quiet"), cwd=lab.place) as live:
        while lab.engine.stats().requests < 3:
            time.sleep(0.01)
        with closing(sqlite3.connect(f"file:{lab.journal}?mode=ro", uri=True)) as connection:
            ahead = Witness(lab.journal, identity_of(connection))
        ahead.note(10**6)
        ahead.close()
        log = (lab.place / "holdfast.db-wal").read_bytes()
        done = lab.holdfast("journal", "check", lab.journal, "--repair")
        assert done.code == Exit.HELD, done
        assert f"process {live.pid}" in done.line
        assert (lab.place / "holdfast.db-wal").read_bytes().startswith(log)
        live.kill()
        live.communicate()
