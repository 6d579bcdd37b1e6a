"""Snapshots that are gone, damaged or too large cost work, never the run."""

import asyncio
import sqlite3

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.group import GroupPolicy
from holdfast.rollout.episodes import guarded
from support.engine.local_run import LocalRun
from support.rollout import worlds
from support.rollout.stage import Oracle
from support.rollout.worlds import Counter

NAMES = ("a", "b")


@pytest.fixture(autouse=True)
def calls():
    worlds.CALLS.clear()
    return worlds.CALLS


def worked(path, *, is_killed: bool):
    """What became of each trajectory, and the run's ending."""

    async def solve(t):
        """Two steps, with a snapshot after each; and then a third one, or the kill."""
        episode = await t.env(Counter("snapshot", goal=10_000), seed=0)
        for _ in range(2):
            await episode.step(str(ord(t.task.id)))
            t.add("go")
            await t.generate()
        if is_killed:
            waiting.append(t.task.id)
            if len(waiting) == len(NAMES):
                local.stop.request("killed")
            await asyncio.Event().wait()
        return float((await episode.step("1")).text.removeprefix("at "))

    async def work():
        nonlocal local
        journal = SqliteJournal(path)
        local = LocalRun(*NAMES, journal=journal, policy=Oracle(lambda request: "go on"))
        try:
            ending = await local.work(solve, grace=0)
            fields = await local._histories()
            return {name.split("/")[0]: field for name, field in fields.items()}, ending
        finally:
            await journal.close()

    local, waiting = None, []
    return asyncio.run(work())


def damage(path, how: str, body: str) -> None:
    connection = sqlite3.connect(path)
    if how == "missing":
        done = connection.execute("DELETE FROM blobs WHERE body = ?", (body.encode(),))
    else:
        done = connection.execute("UPDATE blobs SET body = x'30' WHERE body = ?", (body.encode(),))
    assert done.rowcount == 1
    connection.commit()
    connection.close()


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_an_older_snapshot_serves_where_the_newest_cannot_be_read(tmp_path, how, calls):
    path = tmp_path / "journal.db"
    worked(path, is_killed=True)
    damage(path, how, "194")
    calls.clear()
    histories, ending = worked(path, is_killed=False)
    assert ending.fatal is None
    assert {name: history.reward for name, history in histories.items()} == {"a": 195.0, "b": 197.0}
    assert sorted(call for call in calls if "restore" in call) == ["restore 196", "restore 97"]
    assert calls.count("step 97") == 1


def test_without_any_snapshot_everything_is_done_again(tmp_path, calls):
    path = tmp_path / "journal.db"
    worked(path, is_killed=True)
    damage(path, "missing", "97")
    damage(path, "damaged", "194")
    calls.clear()
    histories, ending = worked(path, is_killed=False)
    assert ending.fatal is None
    assert {name: history.status.name for name, history in histories.items()} == dict.fromkeys(
        NAMES, "COMPLETED"
    )
    assert histories["a"].reward == 195.0
    assert calls.count("step 97") == 2


def test_a_check_of_the_journal_names_a_snapshot_that_is_missing(tmp_path):
    path = tmp_path / "journal.db"
    worked(path, is_killed=True)
    assert check(path).findings == []
    damage(path, "missing", "194")
    (finding,) = check(path).findings
    assert finding.where.startswith("run/a/0, record")
    assert "needs blob" in finding.what


def test_a_snapshot_that_is_too_large_fails_its_own_trajectory_only(monkeypatch):
    monkeypatch.setattr(guarded, "MAX_SNAPSHOT_BYTES", 1000)

    class Large(Counter):
        def snapshot(self):
            return bytes(1001)

    async def solve(t):
        episode = await t.env(Large("snapshot") if t.task.id == "a" else Counter("snapshot"))
        await episode.step("1")
        t.add("go")
        await t.generate()

    local = LocalRun(*NAMES, group=GroupPolicy(refill=0))
    local.run(solve, max_retry=0)
    assert local.statuses() == {"a/0": ("FAILED", True), "b/0": ("COMPLETED", True)}
    (failure,) = local.history("a/0").failures
    assert "1,001 bytes are more than 1,000; keep parts in self.blobs" in failure.message
