"""Who waits is woken by the server: nothing here would be seen in time by looking again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sql import journal as module
from support.journal import postgres_server as server
from support.records import consuming, joined, make_tasks, settle, spec

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")
LONG = 600.0
"""Longer than the test may take."""


def between(body: Callable[[PostgresJournal, PostgresJournal], Awaitable[None]]) -> None:
    """With two journals on one database, as of two processes: each has connections of its own, and
    they share nothing but the server."""
    url = server.emptied_database()

    async def use() -> None:
        async with PostgresJournal(url) as journal, PostgresJournal(url) as other:
            await body(journal, other)

    asyncio.run(use())


def test_a_worker_that_waits_is_woken_by_tasks_and_by_what_another_gives_back() -> None:
    async def body(here: PostgresJournal, there: PostgresJournal) -> None:
        run = await there.create_run(spec(samples=1), make_tasks("a"), sealed=False)
        holder = await joined(there, run)
        assert await there.claim(holder, groups=1)
        waiting = await joined(here, run)
        assert not await here.claim(waiting, groups=1)

        seen = here.changes.count
        await there.admit(run, make_tasks("b"))
        assert await here.changes.wait(seen, timeout=LONG)
        assert [claim.task.id for claim in await here.claim(waiting, groups=9)] == ["b"]

        seen = here.changes.count
        await there.leave(holder)
        assert await here.changes.wait(seen, timeout=LONG)
        assert [claim.task.id for claim in await here.claim(waiting, groups=9)] == ["a"]

    between(body)


def test_a_worker_that_waits_is_woken_by_the_end_of_its_run() -> None:
    async def body(here: PostgresJournal, there: PostgresJournal) -> None:
        run = await there.create_run(spec(samples=1), make_tasks("a"))
        (claim,) = await there.claim(await joined(there, run), groups=1)
        assert not await here.claim(await joined(here, run), groups=1)
        seen = here.changes.count
        await settle(there, claim)
        assert await here.changes.wait(seen, timeout=LONG)

    between(body)


def test_a_trainer_that_waits_is_woken_by_the_group_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", LONG)

    async def body(here: PostgresJournal, there: PostgresJournal) -> None:
        run = await there.create_run(spec(samples=2), make_tasks("a", "b"))
        claims = await there.claim(await joined(there, run), groups=2)
        trainer = await consuming(here, run, lease_seconds=10 * LONG)
        waiting = asyncio.ensure_future(here.next_batch(trainer, 1, groups=1, wait=LONG))
        while not here.changes._waiting:
            await asyncio.sleep(0.01)
        await settle(there, claims[1])
        batch = await waiting
        assert [group[0].key.task for group in batch.groups] == ["b"]

    between(body)
