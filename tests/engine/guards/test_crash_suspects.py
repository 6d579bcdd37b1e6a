"""Trajectories in whose calls the process dies: the innocent get on, the guilty is found out."""

import asyncio

import pytest

import holdfast
from holdfast.engine.guards.crash_suspects import (
    MAX_AT_ONCE,
    Slot,
    Slots,
    Suspects,
    allowed_at_once,
)
from holdfast.engine.stop import Stop
from holdfast.records.errors import RunStopped
from holdfast.records.group import GroupPolicy
from holdfast.rollout.replay.session import MAX_CRASHES, SUSPECT_AFTER_CRASHES
from support.engine.local_run import LocalRun
from support.rollout.stage import call

NO_REFILL = GroupPolicy(0)


def test_the_more_deaths_the_fewer_run_at_once():
    allowed = [allowed_at_once(deaths) for deaths in range(SUSPECT_AFTER_CRASHES, MAX_CRASHES)]
    assert allowed[0] == MAX_AT_ONCE
    assert allowed == sorted(allowed, reverse=True)
    assert allowed[-10:] == [1] * 10


async def test_a_suspect_waits_outside_its_slot_and_others_run():
    slots = Slots(0)  # All of the two are taken.
    suspects, first, second = Suspects(Stop()), Slot(slots), Slot(slots)
    alone = MAX_CRASHES - 1
    texts = []

    async def wait():
        async with suspects.turn(alone, second):
            texts.append("second")

    async with suspects.turn(alone, first):
        waiting = asyncio.create_task(wait())
        await slots.acquire()
        async with suspects.turn(0, first):
            texts.append("no suspect")
        assert texts == ["no suspect"]
        slots.release()
    await waiting
    assert texts == ["no suspect", "second"]


async def test_a_suspect_that_waits_ends_with_the_stop_of_the_run():
    stop, alone = Stop(), MAX_CRASHES - 1
    slots = Slots(0)
    suspects = Suspects(stop)

    async def wait():
        async with suspects.turn(alone, Slot(slots)):
            raise AssertionError("it has no room")

    async with suspects.turn(alone, Slot(slots)):
        waiting = asyncio.create_task(wait())
        await slots.acquire()  # It has given its slot up, and waits.
        stop.request("enough")
        with pytest.raises(RunStopped):
            await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_one_that_kills_the_process_is_given_up_and_those_beside_it_get_on():
    local, deaths = LocalRun(*"abcdef", group=NO_REFILL), 0

    @holdfast.tool(contract="idempotent")
    async def work(name: str) -> str:
        """Works."""
        nonlocal deaths
        if name == "c":
            deaths += 1
            local.stop.request("killed")
        # Whoever runs beside the one that kills is never done.
        for _ in range(20):
            await asyncio.sleep(0)
        return "done"

    async def solve(t):
        return float((await t.tool(call("work", f'{{"name": "{t.key.task}"}}'), work)).ok)

    for _ in range(MAX_CRASHES + 2):
        local.run(solve, grace=0, max_retry=0)
    statuses = local.statuses()
    assert statuses.pop("c/0") == ("FAILED", True)
    assert set(statuses.values()) == {("COMPLETED", True)}
    assert not [name for name in statuses if local.history(name).failures]
    assert deaths == MAX_CRASHES + 1


def test_a_call_that_was_done_at_last_counts_no_more():
    local, is_free = LocalRun(group=NO_REFILL), False

    @holdfast.tool(contract="idempotent")
    async def reach() -> str:
        """Reaches out."""
        if not is_free:
            local.stop.request("killed")
            await asyncio.Event().wait()
        return "ok"

    async def solve(t):
        return float((await t.tool(call("reach"), reach)).ok)

    for _ in range(SUSPECT_AFTER_CRASHES + 2):
        local.run(solve, grace=0, max_retry=0)
    assert local.history().deaths > SUSPECT_AFTER_CRASHES
    is_free = True
    local.run(solve, max_retry=0)
    assert (local.history().status.name, local.history().deaths) == ("COMPLETED", 0)
