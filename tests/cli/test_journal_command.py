"""A journal that is damaged: said with its place and with what to do, never skipped."""

import json
import shutil
import signal

import pytest
from shell import Lab

from holdfast.cli.exit import Exit

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


def test_a_settled_trajectory_that_is_corrupt_is_told_by_every_command(ran):
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
    for words in (("show", "r"), ran.words("--quiet")):
        done = ran.holdfast(*words)
        assert done.code == Exit.CORRUPT, words
        assert f"CORRUPT r/sum/0: record 2 of trajectory 1 (position {place})" in done.out
        assert "--repair" in done.line
    assert ran.holdfast("show", "r", "long-one/0").code == 0
    assert ran.holdfast("runs").code == 0


@pytest.mark.parametrize("damage", [FLIP, "UPDATE records SET body = substr(body, 1, 9) {0}"])
def test_a_torn_record_of_an_open_trajectory_is_cut_by_the_run_itself(lab, undisturbed, damage):
    """The trajectory was killed on its way; then its last record was torn."""
    lab.write("agent.py", (lab.place / "agent.py").read_text())
    done = lab.run("--quiet", env={"HOLDFAST_CRASH": "engine.finished:1"}, concurrency=1)
    assert done.code == -signal.SIGKILL
    lab.damage("DELETE FROM records WHERE trajectory = 1 AND seq >= 4")
    last = "(SELECT max(position) FROM records WHERE trajectory = 1)"
    lab.damage(f"UPDATE heads SET length = 4, position = {last} WHERE trajectory = 1")
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
