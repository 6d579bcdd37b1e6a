"""Rows that are not what they were written as are noticed, mended from the log, never exported."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.engine.export.export import What, rows
from holdfast.engine.report import build
from holdfast.journal import open_journal
from holdfast.journal.damage.check import check, repair
from holdfast.journal.damage.check_server import check_server, repair_server
from holdfast.journal.rows import history_of_row, places_of_moved, task_body
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.run import Run
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.training.batch import load_group
from support.journal import postgres_server as server
from support.records import (
    finished,
    generated,
    joined,
    make_tasks,
    ready,
    scored,
    spec,
    sql,
    started,
)

Result = TypeVar("Result")
STATUSES = (Status.COMPLETED, Status.COMPLETED, Status.FAILED, Status.TRUNCATED)


class Stored:
    """A journal of three settled groups of four, in a file or on a server, that is damaged."""

    def __init__(self, where: str):
        self.where = where
        self.use(self._fill)

    async def _fill(self, journal: Journal, run: Run | None) -> None:
        assert run is None
        _, worker, claims = await ready(journal, *"abc", samples=4)
        for claim in claims:
            for lease, status in zip(claim.open, STATUSES, strict=True):
                records = [started(), generated("1"), finished(status)]
                records += [scored()] if status.is_outcome else []
                await journal.append(lease, records, status=status, settled=True)
        await journal.leave(worker)

    def use(self, do: Callable[[Journal, Run], Awaitable[Result]]) -> Result:
        async def use() -> Result:
            journal = open_journal(self.where)
            try:
                return await do(journal, await journal.find_run("run"))
            finally:
                await journal.close()

        return asyncio.run(use())

    def damage(self, *statements: str) -> None:
        for statement in statements:
            if self.where.startswith("postgresql"):
                server.run_sql(self.where, statement.format(schema="holdfast."))
            else:
                sql(Path(self.where), statement.format(schema=""))

    def findings(self) -> list[str]:
        if self.where.startswith("postgresql"):
            report = asyncio.run(check_server(self.where))
        else:
            report = check(Path(self.where))
        return [str(finding) for finding in report.findings]

    def repair(self) -> None:
        if self.where.startswith("postgresql"):
            assert asyncio.run(repair_server(self.where)) == ([], "")
        else:
            assert repair(Path(self.where)) == []

    def exported(self, what: What = What.SAMPLES) -> list[object]:
        async def export(journal: Journal, run: Run) -> list[object]:
            return [row async for row in rows(journal, run, what)]

        return self.use(export)


needs_server = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")


@pytest.fixture(params=["file", pytest.param("server", marks=needs_server)])
def stored(request, tmp_path) -> Stored:
    if request.param == "file":
        return Stored(str(tmp_path / "journal.db"))
    return Stored(server.emptied_database())


def test_tasks_at_each_others_places_are_noticed_refused_and_put_back(stored):
    before = stored.exported()
    stored.damage(
        "UPDATE {schema}tasks SET ordinal = 9 WHERE ordinal = 0",
        "UPDATE {schema}tasks SET ordinal = 0 WHERE ordinal = 2",
        "UPDATE {schema}tasks SET ordinal = 2 WHERE ordinal = 9",
    )
    texts = stored.findings()
    assert len(texts) == 2
    assert all("fails its checksum" in finding and "is put back" in finding for finding in texts)
    with pytest.raises(JournalCorrupt, match="fails its checksum"):
        stored.exported()
    stored.repair()
    assert stored.findings() == []
    assert stored.exported() == before


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [({1: 1, 2: 0}, "task 0: 2"), ({3: 7}, "task 0: 1"), ({3: -3}, "task 0: 1")],
    ids=["swapped", "too large", "negative"],
)
def test_changed_sample_numbers_are_noticed_and_put_back(stored, numbers, wrong):
    before = stored.exported()
    stored.damage(
        *(f"UPDATE {{schema}}trajectories SET sample = {90 + n} WHERE id = {n}" for n in numbers),
        *(
            f"UPDATE {{schema}}trajectories SET sample = {to} WHERE id = {n}"
            for n, to in numbers.items()
        ),
    )
    assert any(
        f"run 1, {wrong} of its samples are not numbered 0, 1, 2, …" in finding
        and "numbered again" in finding
        for finding in stored.findings()
    )
    stored.repair()
    assert stored.findings() == []
    assert stored.exported() == before


def test_samples_are_not_renumbered_while_one_is_missing(stored):
    """Its number shows which sample is missing."""
    stored.damage("DELETE FROM {schema}trajectories WHERE id = 1")
    assert any("numbered 0, 1, 2" in finding and "disk" in finding for finding in stored.findings())
    before = stored.exported()
    stored.repair()
    assert stored.exported() == before


def test_trajectories_of_each_others_tasks_are_noticed(stored):
    stored.damage(
        "UPDATE {schema}trajectories SET task = 9 WHERE task = 0",
        "UPDATE {schema}trajectories SET task = 0 WHERE task = 1",
        "UPDATE {schema}trajectories SET task = 1 WHERE task = 9",
    )
    assert any("2 of its trajectories are not of the tasks" in each for each in stored.findings())


@pytest.mark.parametrize(
    ("trajectory", "status"),
    [
        (1, Status.FAILED),
        (3, Status.COMPLETED),
        (2, Status.TRUNCATED),
        (2, Status.PENDING),
        (2, Status.RUNNING),
    ],
)
def test_a_wrong_status_is_noticed_never_exported_and_mended(stored, trajectory, status):
    before = {what: stored.exported(what) for what in What}
    stored.damage(f"UPDATE {{schema}}trajectories SET status = {status} WHERE id = {trajectory}")
    assert any(f"is marked {status.name}" in each for each in stored.findings())
    for what in (What.SAMPLES, What.ROWS):
        with pytest.raises(
            JournalCorrupt, match=rf"run/a/{trajectory - 1} is corrupt: it is marked"
        ):
            stored.exported(what)
    with pytest.raises(JournalCorrupt, match="is marked"):
        stored.use(_train)
    assert len(stored.use(build).corrupt) == 1
    stored.repair()
    assert stored.findings() == []
    assert {what: stored.exported(what) for what in What} == before


async def _train(journal: Journal, run: Run) -> object:
    return await load_group(journal, (await journal.trajectories(run))[:4])


def test_what_is_settled_without_an_end_is_opened_again(stored):
    async def begin(journal: Journal, run: Run) -> None:
        other = await journal.create_run(spec("other", samples=1), make_tasks("z"))
        claims = await journal.claim(await joined(journal, other), groups=1)
        await journal.append(claims[0].open[0], [started()], status=Status.RUNNING)

    stored.use(begin)
    stored.damage(
        "UPDATE {schema}counters SET value = value + 1 WHERE name = 'settled'",
        "UPDATE {schema}trajectories SET settled = 13 WHERE id = 13",
        "DELETE FROM {schema}workers",
    )
    assert any("is settled, but its log does not end" in each for each in stored.findings())
    stored.repair()
    assert stored.findings() == []


def test_a_log_that_grew_since_its_row_was_read_is_no_contradiction():
    row = TrajectoryRow(TrajectoryKey("r", "a", 0), 1, 0, Status.FAILED, True, 1, 2, "")
    records = [started(), finished(Status.FAILED)]
    assert history_of_row(row, records).status is Status.FAILED
    assert history_of_row(row, [*records, finished()]).status is Status.COMPLETED
    with pytest.raises(JournalCorrupt, match="is marked FAILED; its log says COMPLETED"):
        history_of_row(row, [started(), finished()])


def test_only_tasks_that_are_at_each_others_places_are_put_back():
    tasks = [task_body(task, place) for place, task in enumerate(make_tasks(*"abcd"))]
    whole = [(place, *row) for place, row in enumerate(tasks)]
    assert places_of_moved(whole) == {}
    moved = [(0, *tasks[1]), (1, *tasks[2]), (2, *tasks[0]), whole[3]]
    assert places_of_moved(moved) == {0: 1, 1: 2, 2: 0}
    assert places_of_moved([*moved[:2], (2, b"torn", 1), whole[3]]) == {}
