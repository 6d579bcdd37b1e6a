"""A run that takes tasks while it is worked on."""

import asyncio

import pytest

from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.message import user
from holdfast.records.task import Task
from support.engine.local_run import LocalRun, turn


def task(name: str) -> Task:
    return Task(id=name, messages=(user(f"do {name}"),))


@pytest.fixture(params=["memory", "sqlite"])
def local(request, tmp_path):
    """With a run that has no tasks yet."""
    journal = None if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")
    local = LocalRun(journal=journal, samples=2)
    yield local
    asyncio.run(local.journal.close())


async def solve(t) -> None:
    await turn(t)


async def begun(local: LocalRun, **settings):
    """The run, and an engine that works on it."""
    local.tasks = []
    await local.journal.create_run(local.spec, [], sealed=False)
    run = await local.journal.find_run("run")
    working = asyncio.create_task(local.work(solve, **settings))
    return run, working


async def settled(local: LocalRun, run, number: int) -> None:
    while (await local.journal.progress(run)).settled < number:
        await local.journal.changes.wait(local.journal.changes.count, timeout=0.01)


@pytest.mark.parametrize("join", [False, True])
def test_the_engine_waits_for_tasks_until_the_run_is_sealed(local, join):
    async def body():
        run, working = await begun(local, join=join)
        await local.journal.admit(run, [task("a")])
        await settled(local, run, 2)
        assert not working.done()
        await local.journal.admit(run, [task("b"), task("c")])
        await settled(local, run, 6)
        await local.journal.seal(run)
        ending = await working
        assert (ending.stopped, ending.fatal) == ("", None)

    asyncio.run(body())
    local.assert_nothing_left()
    assert set(local.statuses()) == {f"{name}/{sample}" for name in "abc" for sample in (0, 1)}
    assert {status for status, _ in local.statuses().values()} == {"COMPLETED"}


def test_what_is_admitted_right_before_the_seal_is_worked_on(local):
    async def body():
        run, working = await begun(local)
        for number in range(20):
            await local.journal.admit(run, [task(f"t{number}")])
        await local.journal.seal(run)
        await working

    asyncio.run(body())
    assert len(local.statuses()) == 40
    assert all(is_settled for _, is_settled in local.statuses().values())


async def test_a_stream_that_is_empty_and_sealed_ends_at_once(local):
    run, working = await begun(local)
    await local.journal.seal(run)
    assert (await working).stopped == ""


def test_an_engine_that_waits_for_tasks_can_be_stopped(local):
    async def body():
        _, working = await begun(local)
        while local.stop is None:
            await asyncio.sleep(0)
        local.stop.request("enough")
        assert (await working).stopped == "enough"

    asyncio.run(body())
    local.assert_nothing_left()


async def test_tasks_of_another_process_are_noticed(tmp_path):
    """Its journal is another object: nobody tells this one."""
    local = LocalRun(journal=SqliteJournal(tmp_path / "journal.db"))
    run, working = await begun(local, lease_seconds=0.3)
    other = SqliteJournal(tmp_path / "journal.db")
    await other.admit(run, [task("a")])
    await settled(local, run, 1)
    await other.seal(run)
    await working
    await other.close()
    await local.journal.close()
