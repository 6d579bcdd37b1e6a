"""Reading a run from Python gives what the export writes."""

import asyncio
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.engine.export.export import What
from holdfast.journal.sqlite.journal import SqliteJournal
from support.engine.local_run import LocalRun, turn


async def solve(t):
    await turn(t)
    if t.task.id == "bad":
        raise KeyError("a bug")
    return 1.0


async def listed(results) -> list:
    return [result async for result in results]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of three tasks, one of which has failed."""

    async def run():
        journal = SqliteJournal(tmp_path / "j.db")
        await LocalRun("a", "b", "bad", journal=journal, samples=2).work(solve)
        await journal.close()

    asyncio.run(run())
    return tmp_path / "j.db"


@pytest.mark.parametrize("fixed", [False, True])
async def test_samples_are_those_of_the_export(path: Path, fixed: bool):
    items = await listed(holdfast.samples(path, "run", fixed_groups=fixed))
    journal = holdfast.open_journal(path, read_only=True)
    run = await journal.find_run("run")
    exported = await listed(
        holdfast.engine.export.export.rows(journal, run, What.SAMPLES, fixed_groups=fixed)
    )
    open_too = await listed(holdfast.samples(journal, "run", fixed_groups=fixed))
    await journal.close()
    results, exported, open_too = items, exported, open_too
    assert exported
    assert isinstance(results[0], holdfast.Sample)
    assert msgspec.to_builtins(results) == exported == msgspec.to_builtins(open_too)


def test_every_trajectory_is_there_with_its_task_and_how_it_ended(path: Path):
    views = asyncio.run(listed(holdfast.trajectories(str(path), "run")))
    assert [(view.task.id, view.key.sample, view.status.name, view.reward) for view in views] == [
        *(("a", sample, "COMPLETED", 1.0) for sample in range(2)),
        *(("b", sample, "COMPLETED", 1.0) for sample in range(2)),
        *(("bad", sample, "FAILED", None) for sample in range(2)),
    ]


@pytest.mark.parametrize("reading", [holdfast.samples, holdfast.trajectories])
def test_what_is_not_there_is_said_by_name(path: Path, reading):
    with pytest.raises(holdfast.UsageError, match="no run 'other' in the journal; it has: run"):
        asyncio.run(listed(reading(path, "other")))
    with pytest.raises(holdfast.UsageError, match=r"there is no journal at .*nowhere\.db"):
        asyncio.run(listed(reading(path.with_name("nowhere.db"), "run")))
    assert not path.with_name("nowhere.db").exists()
    with pytest.raises(holdfast.UsageError, match="named by its name, a text, not None"):
        asyncio.run(listed(reading(path, None)))
    with pytest.raises(holdfast.UsageError, match="a journal is the path of a file"):
        asyncio.run(listed(reading(None, "run")))
