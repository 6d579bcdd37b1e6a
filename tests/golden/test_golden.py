"""Journals of every released version open, are whole, and say what they always said.

What is expected stands here as plain values: nothing of it is computed by the code under test.
"""

import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import RunProgress
from holdfast.records.conversation import conversation
from holdfast.records.history import History, stream_of
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import EnvironmentStepped
from holdfast.records.trajectory import Status
from support.records import consuming, joined, values

HERE = Path(__file__).parent


@pytest.fixture(params=range(1, schema.VERSION + 1), ids=lambda version: f"v{version}")
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(HERE / f"journal-v{request.param}.db", tmp_path))


async def fold(path: Path) -> dict[str, History]:
    journal = SqliteJournal(path)
    try:
        run = await journal.find_run("golden")
        assert run is not None
        return {str(row.key): History(log) async for row, log in journal.histories(run)}
    finally:
        await journal.close()


def test_every_version_has_its_golden_journal() -> None:
    names = {path.name for path in HERE.glob("journal-v*.db")}
    assert names == {f"journal-v{version}.db" for version in range(1, schema.VERSION + 1)}


def test_it_is_whole(golden: Path) -> None:
    report = check(golden)
    assert report.findings == []
    assert (report.runs, report.tasks, report.trajectories) == (2, 7, 14)
    assert report.records == 33
    assert (report.blobs, report.cuts, report.deliveries) == (1, 1, 1)


def test_it_folds_to_what_was_recorded(golden: Path) -> None:
    histories = asyncio.run(fold(golden))
    statuses = {name: history.status for name, history in histories.items()}
    assert statuses == {
        "golden/a/0": Status.COMPLETED,
        "golden/a/1": Status.TRUNCATED,
        "golden/b/0": Status.RUNNING,
        "golden/b/1": Status.RUNNING,
        "golden/c/0": Status.RUNNING,
        "golden/c/1": Status.PENDING,
        "golden/d/0": Status.PENDING,
        "golden/d/1": Status.PENDING,
        "golden/e/0": Status.PENDING,
        "golden/e/1": Status.PENDING,
    }
    solved, troubled = histories["golden/a/0"], histories["golden/a/1"]
    assert (solved.reward, troubled.reward) == (0.75, 1.0)
    assert stream_of(solved, "3").tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (troubled.life, len(troubled.attempts), len(troubled.forks)) == (1, 3, 1)
    assert [failure.message for failure in troubled.failures] == ["reset by peer"] * 2
    assert stream_of(troubled, "0").tolist() == [1, 4, 5]
    assert list(histories["golden/c/0"].steps) == ["0"]


def test_it_gives_the_same_samples_and_messages(golden: Path) -> None:
    history = asyncio.run(fold(golden))["golden/a/0"]
    (sample,) = samples_of(history, task="a", group="golden/a", sample=0)
    assert sample.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert sample.loss_mask == [0, 0, 1, 1, 0, 1, 1]
    assert sample.logprobs == [0.0, 0.0, -0.5, -0.25, 0.0, -0.5, -0.5]
    assert [
        (version_span.version, version_span.start, version_span.end, version_span.source)
        for version_span in sample.version_spans
    ] == [
        ("v1", 2, 4, 0),
        ("v1", 5, 6, 0),
        ("v2", 6, 7, 1),
    ]

    async def task() -> list[str]:
        journal = SqliteJournal(golden)
        run = await journal.find_run("golden")
        assert run is not None
        first = (await journal.tasks(run))[0]
        await journal.close()
        return [message.text for message in conversation(history, first)]

    assert asyncio.run(task()) == ["do a", "reply 0", "42", "Größe? 尺寸 🌊", "reply 3"]


async def test_it_can_be_resumed_and_delivered_from(golden: Path) -> None:
    journal = SqliteJournal(golden)
    run = await journal.find_run("golden")
    assert run is not None
    assert [change.differences for change in run.changes] == [("tasks",)]
    trainer = await consuming(journal, run)
    assert trainer.committed == 1
    batch = await journal.next_batch(trainer, 1, groups=9)
    assert [row.key.task for group in batch.groups for row in group] == ["a", "a"]
    step = History(await journal.history(1)).steps["2"]
    assert isinstance(step, EnvironmentStepped)
    assert await journal.get_blob(step.snapshot) == b"the state of the world"
    claims = await journal.claim(await joined(journal, run), groups=9)
    assert [claim.task.id for claim in claims] == ["b", "c", "e"]
    await journal.append(claims[1].open[0], values(1))
    assert len(await journal.history(claims[1].open[0].id)) == 3
    await journal.close()
    assert check(golden).findings == []


async def ledger(path: Path, *, read_only: bool) -> object:
    journal = SqliteJournal(path, read_only=read_only)
    try:
        run = await journal.find_run("golden")
        assert run is not None
        entries = await journal.ledger(run, "trainer")
        ends = [(entry.task, entry.end.value, entry.step, entry.reason) for entry in entries]
        return ends, await journal.consumers(run), await journal.progress(run)
    finally:
        await journal.close()


def test_its_ledger_is_read_in_place_and_after_the_migration(golden: Path) -> None:
    before = golden.read_bytes()
    expected = (
        [
            ("a", "trained", 1, ""),
            ("b", "open", None, "rolling out"),
            ("c", "open", None, "rolling out"),
            ("e", "open", None, "rolling out"),
        ],
        ["trainer"],
        RunProgress(planned=8, settled=2, failed=0, sealed=True),
    )
    assert asyncio.run(ledger(golden, read_only=True)) == expected
    assert golden.read_bytes() == before
    assert asyncio.run(ledger(golden, read_only=False)) == expected
    assert check(golden).findings == []


async def test_the_newest_keeps_its_stream_and_its_weight_versions(tmp_path: Path) -> None:
    path = Path(shutil.copy(HERE / "journal-v1.db", tmp_path))
    journal = SqliteJournal(path)
    run, stream = await journal.find_run("golden"), await journal.find_run("stream")
    assert run is not None
    assert stream is not None
    assert [structs.astuple(version) for version in await journal.versions(run)] == [
        (1, "v1", 0, "sha256:v1"),
        (2, "v2", 1, "sha256:v2"),
    ]
    assert not (await journal.progress(stream)).sealed
    assert [task.id for task in await journal.tasks(stream)] == ["a", "a@2"]
    await journal.close()
