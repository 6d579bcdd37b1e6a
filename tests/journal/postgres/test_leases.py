"""Leases on a server whose clock is set: nobody waits long, and nobody alive is taken for dead."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import ConsumerHeld, RunHeld
from support.journal import postgres_server as server
from support.records import make_tasks, someone_else, spec, values

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")

HOURS = 7200
# Functions of the same names that are found before the server's own: a clock that tests can set.
CLOCK = (
    "CREATE TABLE public.clock(seconds double precision)",
    "INSERT INTO public.clock VALUES (0)",
    "GRANT SELECT ON public.clock TO trainer",
    """CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
        SELECT pg_catalog.clock_timestamp() + (SELECT seconds FROM public.clock)
            * interval '1 second' $$""",
)


@pytest.fixture
def url() -> Iterator[str]:
    where = server.new_database()
    name = where.split("?")[0].rpartition("/")[2]
    server.run_sql(where, *CLOCK)
    server.run_sql("postgres", f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
    yield where
    server.drop_database(where)


async def set_clock(url: str, seconds: float) -> None:
    await asyncio.to_thread(server.run_sql, url, f"UPDATE public.clock SET seconds = {seconds}")


def using(url: str, do: Callable[[Journal, Journal], Awaitable[None]]) -> None:
    async def use() -> None:
        first, second = PostgresJournal(url), PostgresJournal(url)
        try:
            await do(first, second)
        finally:
            await first.close()
            await second.close()

    asyncio.run(use())


def test_a_dead_workers_work_waits_for_one_lease_although_the_clock_was_set_back(url):
    async def do(first: Journal, second: Journal) -> None:
        run = await first.create_run(spec(samples=1), make_tasks("a"))
        dead = await first.join(run, someone_else(1), lease_seconds=1.0, share=True)
        await first.claim(dead, groups=1)
        await set_clock(url, -HOURS)
        worker = await second.join(run, someone_else(2), lease_seconds=60.0, share=True)
        assert await second.claim(worker, groups=1) == []
        await asyncio.sleep(1.1)
        assert len(await second.claim(worker, groups=1)) == 1

    using(url, do)


def test_a_live_worker_keeps_its_work_although_the_clock_was_set_back(url):
    async def do(first: Journal, second: Journal) -> None:
        run = await first.create_run(spec(samples=1), make_tasks("a"))
        alive = await first.join(run, someone_else(1), lease_seconds=60.0, share=True)
        (claim,) = await first.claim(alive, groups=1)
        await set_clock(url, -HOURS)
        worker = await second.join(run, someone_else(2), lease_seconds=60.0, share=True)
        assert await second.claim(worker, groups=1) == []
        await first.heartbeat(alive)
        assert await second.claim(worker, groups=1) == []
        await first.append(claim.open[0], values(1))

    using(url, do)


def test_commands_that_were_refused_get_the_run_after_one_lease(url):
    """A refusal undoes its own transaction, and must not undo what it learned of the clock."""

    async def do(first: Journal, second: Journal) -> None:
        run = await first.create_run(spec(samples=1), make_tasks("a"))
        await first.join(run, someone_else(1), lease_seconds=1.0, share=True)
        await first.subscribe(run, "trainer", someone_else(1), lease_seconds=1.0)
        await set_clock(url, -HOURS)
        with pytest.raises(RunHeld):
            await second.join(run, someone_else(2), lease_seconds=1.0, share=False)
        with pytest.raises(ConsumerHeld):
            await second.subscribe(run, "trainer", someone_else(2), lease_seconds=1.0)
        await asyncio.sleep(1.1)
        await second.subscribe(run, "trainer", someone_else(2), lease_seconds=1.0)
        worker = await second.join(run, someone_else(2), lease_seconds=1.0, share=False)
        await second.leave(worker)

    using(url, do)


def test_a_server_that_seems_to_start_in_the_future_ends_leases(url):
    """Its clock was set back to before its start: that is no reason to wait until then."""

    async def do(first: Journal, second: Journal) -> None:
        await set_clock(url, -365 * 86400.0)
        run = await first.create_run(spec(samples=1), make_tasks("a"))
        dead = await first.join(run, someone_else(1), lease_seconds=0.3, share=True)
        await first.claim(dead, groups=1)
        worker = await second.join(run, someone_else(2), lease_seconds=60.0, share=True)
        await asyncio.sleep(0.5)
        assert len(await second.claim(worker, groups=1)) == 1

    using(url, do)


def test_a_listing_names_no_worker_whose_lease_would_last_for_hours(url):
    async def do(first: Journal, second: Journal) -> None:
        run = await first.create_run(spec(samples=1), make_tasks("a"))
        await first.join(run, someone_else(1), lease_seconds=60.0, share=True)
        assert (await second.runs())[0].live_workers != ()
        await set_clock(url, -HOURS)
        assert (await second.runs())[0].live_workers == ()

    using(url, do)
