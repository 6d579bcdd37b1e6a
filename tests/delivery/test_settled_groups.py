"""Who waits for groups shares one reader of the journal, and hears what ended the rollouts."""

import asyncio

import pytest

from holdfast.delivery.settled_groups import SettledGroups
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import HoldfastError
from support.records import joined, make_tasks, settle, spec

COUNT = 50


class Watched(MemoryJournal):
    """Counts how often trajectories are read."""

    reads = 0

    async def trajectories(self, run, **more):
        self.reads += 1
        return await super().trajectories(run, **more)


def nothing_wrong() -> None:
    """The rollouts go on."""


async def waiting(check=nothing_wrong):
    """A wait for each of many groups, all of which are under way."""
    journal = Watched()
    tasks = make_tasks(*(f"t{number}" for number in range(COUNT)))
    run = await journal.create_run(spec(samples=2), tasks, sealed=False)
    claims = await journal.claim(await joined(journal, run), groups=COUNT)
    groups = SettledGroups(journal, run, check=check)
    waits = [asyncio.create_task(groups.wait([number])) for number in range(COUNT)]
    while journal.reads <= COUNT:
        await asyncio.sleep(0)
    return journal, claims, groups, waits


async def test_each_wait_ends_with_its_own_group_and_one_reader_looks_for_all():
    journal, claims, groups, waits = await waiting()
    before = journal.reads
    for claim in (claims[7], claims[3]):
        await settle(journal, claim)
        ordinal = int(claim.task.id[1:])
        await asyncio.wait_for(waits[ordinal], 60)
        assert sum(wait.done() for wait in waits) == 1, f"{claim.task.id} alone"
        waits[ordinal] = asyncio.create_task(asyncio.sleep(600))
    assert journal.reads - before < COUNT / 2, "not one for each wait"
    assert await groups.under_way(range(COUNT)) == set(range(COUNT)) - {3, 7}
    for wait in waits:
        wait.cancel()
    await groups.close()


async def test_what_ended_the_rollouts_ends_every_wait():
    errors = []

    def check():
        if errors:
            raise errors[0]

    journal, _, groups, waits = await waiting(check)
    errors.append(HoldfastError("the engine is gone"))
    journal.changes.notify()
    for result in await asyncio.gather(*waits, return_exceptions=True):
        assert result is errors[0]
    await groups.close()


async def test_closing_ends_every_wait():
    _, _, groups, waits = await waiting()
    await groups.close()
    for wait in waits:
        with pytest.raises(HoldfastError, match="ended"):
            await wait
