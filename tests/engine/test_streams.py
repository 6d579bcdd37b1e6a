"""A run that takes tasks while it is worked on."""

import asyncio

import pytest

from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.message import user
from holdfast.records.task import Task
from support.engine.yard import Yard, turn


def task(name: str) -> Task:
    return Task(id=name, messages=(user(f"do {name}"),))


@pytest.fixture(params=["memory", "sqlite"])
def yard(request, tmp_path):
    """With a run that has no tasks yet."""
    journal = None if request.param == "memory" else SqliteJournal(tmp_path / "journal.db")
    yard = Yard(journal=journal, samples=2)
    yield yard
    asyncio.run(yard.journal.close())


async def solve(t) -> None:
    await turn(t)


async def begun(yard: Yard, **settings):
    """The run, and an engine that works on it."""
    yard.tasks = []
    await yard.journal.create_run(yard.spec, [], sealed=False)
    run = await yard.journal.find_run("run")
    working = asyncio.create_task(yard.work(solve, **settings))
    return run, working


async def settled(yard: Yard, run, number: int) -> None:
    while (await yard.journal.progress(run)).settled < number:
        await yard.journal.changes.wait(yard.journal.changes.count, timeout=0.01)


@pytest.mark.parametrize("join", [False, True])
def test_the_engine_waits_for_tasks_until_the_run_is_sealed(yard, join):
    async def body():
        run, working = await begun(yard, join=join)
        await yard.journal.admit(run, [task("a")])
        await settled(yard, run, 2)
        assert not working.done()
        await yard.journal.admit(run, [task("b"), task("c")])
        await settled(yard, run, 6)
        await yard.journal.seal(run)
        ending = await working
        assert (ending.stopped, ending.fatal) == ("", None)

    asyncio.run(body())
    yard.assert_nothing_left()
    assert set(yard.statuses()) == {f"{name}/{sample}" for name in "abc" for sample in (0, 1)}
    assert {status for status, _ in yard.statuses().values()} == {"COMPLETED"}


def test_what_is_admitted_right_before_the_seal_is_worked_on(yard):
    async def body():
        run, working = await begun(yard)
        for number in range(20):
            await yard.journal.admit(run, [task(f"t{number}")])
        await yard.journal.seal(run)
        await working

    asyncio.run(body())
    assert len(yard.statuses()) == 40
    assert all(is_settled for _, is_settled in yard.statuses().values())


def test_a_stream_that_is_empty_and_sealed_ends_at_once(yard):
    async def body():
        run, working = await begun(yard)
        await yard.journal.seal(run)
        assert (await working).stopped == ""

    asyncio.run(body())


def test_an_engine_that_waits_for_tasks_can_be_stopped(yard):
    async def body():
        _, working = await begun(yard)
        while yard.stop is None:
            await asyncio.sleep(0)
        yard.stop.request("enough")
        assert (await working).stopped == "enough"

    asyncio.run(body())
    yard.assert_nothing_left()


def test_tasks_of_another_process_are_noticed(tmp_path):
    """Its journal is another object: nobody tells this one."""
    yard = Yard(journal=SqliteJournal(tmp_path / "journal.db"))

    async def body():
        run, working = await begun(yard, lease_seconds=0.3)
        other = SqliteJournal(tmp_path / "journal.db")
        await other.admit(run, [task("a")])
        await settled(yard, run, 1)
        await other.seal(run)
        await working
        await other.close()
        await yard.journal.close()

    asyncio.run(body())
