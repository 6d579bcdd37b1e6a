"""The writer: group commit, refusals that are one caller's, and outcomes that are always known."""

import asyncio
import signal
import threading
import time

import pytest

from holdfast.journal.damage.check_server import check_server, repair_server
from holdfast.journal.postgres import connection as connections
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import JournalError, JournalFull, LeaseLost, LostCommits
from holdfast.records.trajectory import Status
from support.exhaustive import points
from support.journal import postgres_server as server
from support.journal.faulty_journal import When
from support.journal.faulty_server import FaultyServer
from support.journal.own_server import own_server
from support.records import (
    consuming,
    joined,
    make_tasks,
    ready,
    scored,
    someone_else,
    spec,
    started,
    values,
)

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")


# What PostgreSQL raises when a table cannot grow.
FULL = """CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
    END $$"""
FILL = "CREATE TRIGGER full_disk BEFORE INSERT ON holdfast.records EXECUTE FUNCTION public.full()"


async def scenario(journal: Journal) -> object:
    """A little of everything that writes; what came of it."""
    run = await journal.create_run(spec(samples=2), make_tasks("a", "b"), sealed=False)
    await journal.admit(run, make_tasks("c"))
    worker = await joined(journal, run)
    claims = await journal.claim(worker, groups=3)
    leases = [lease for claim in claims for lease in claim.open]
    await asyncio.gather(*(journal.append(lease, [started()], status=Status.RUNNING)
                           for lease in leases))  # fmt: skip
    await journal.append_together([(lease, values(1, 2), None) for lease in leases[:2]])
    for lease in leases:
        await journal.append(lease, [scored()], status=Status.COMPLETED, settled=True)
    digest = await journal.put_blob(b"content")
    await journal.publish_version(run, "v1", step=1, digest="d")
    trainer = await consuming(journal, run)
    batch = await journal.next_batch(trainer, 1, groups=2)
    await journal.commit(trainer, 1)
    await journal.seal(run)
    rest = await journal.take(trainer, groups=5)
    await journal.rewind(trainer, 1)
    await journal.leave(worker)
    histories = [(row.key, row.status, records) async for row, records in journal.histories(run)]
    ledger = await journal.ledger(run, "trainer")
    taken = [[member.key for member in group] for group in (*batch.groups, *rest.groups)]
    blob = await journal.get_blob(digest)
    return histories, ledger, taken, blob, await journal.progress(run)


def perform(faults: FaultyServer) -> object:
    url = server.emptied_database()

    async def use() -> object:
        journal = PostgresJournal(url, connect=faults)
        try:
            return await scenario(journal)
        finally:
            await journal.close()

    return asyncio.run(use())


@pytest.mark.parametrize("when", list(When))
def test_a_connection_that_is_cut_at_a_statement_changes_nothing(when):
    undisturbed = FaultyServer()
    expected = perform(undisturbed)
    total = len(undisturbed.statements)
    step = max(1, total // points(12, total))
    for k in range(1, total + 1, step):
        faults = FaultyServer(k, when=when)
        assert perform(faults) == expected, (k, undisturbed.statements[k - 1])
        assert faults.connections > 2 or k > total - 3


def test_what_waits_is_one_statement():
    url = server.emptied_database()

    async def use() -> int:
        journal = PostgresJournal(url)
        _, _, claims = await ready(journal, *"abcdefgh", samples=8)
        leases = [lease for claim in claims for lease in claim.open]
        before = journal._writer.batches
        await asyncio.gather(*(journal.append(lease, values(1)) for lease in leases))
        made = journal._writer.batches - before
        await journal.close()
        return made

    assert asyncio.run(use()) <= 2, "64 appends, and perhaps the worker's own renewal"


def test_a_stale_append_among_many_fails_its_own_caller_only():
    append_with_stale_leases(FaultyServer())


@pytest.mark.parametrize("when", list(When))
def test_a_stale_append_is_refused_although_the_connection_is_cut(when):
    undisturbed = FaultyServer()
    append_with_stale_leases(undisturbed)
    for k, statement in enumerate(undisturbed.statements, 1):
        if "holdfast.append(" in statement:
            append_with_stale_leases(FaultyServer(k, when=when))


def append_with_stale_leases(faults: FaultyServer) -> None:
    url = server.emptied_database()

    async def use() -> None:
        journal = PostgresJournal(url, connect=faults)
        run, worker, claims = await ready(journal, "a", "b", "c", samples=2)
        stale = claims[0].open
        await journal.leave(worker)
        fresh = await journal.claim(await joined(journal, run), groups=3)
        good = [lease for claim in fresh for lease in claim.open]
        outcomes = await asyncio.gather(
            journal.append(good[0], values(1)),
            journal.append(stale[0], values(66)),
            journal.append_together([(good[1], values(1), None), (stale[1], values(66), None)]),
            journal.append(good[1], values(2)),
            journal.append(good[2], values(1)),
            return_exceptions=True,
        )
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [type(None), LeaseLost, LeaseLost, JournalError, type(None)]
        assert await journal.history(good[0].id) == values(1)
        assert await journal.history(good[1].id) == []
        assert await journal.history(good[2].id) == values(1)
        await journal.close()

    asyncio.run(use())
    assert asyncio.run(check_server(url)).findings == []


def test_a_server_that_lost_acknowledged_commits_is_noticed_and_refused():
    """As after a failover to a standby that lacked them."""
    with own_server() as own:
        older = own.folder / "older"

        async def use() -> None:
            journal = PostgresJournal(own.url)
            _, _, claims = await ready(journal, "a", samples=1)
            await journal.append(claims[0].open[0], values(1))
            own.kill(signal.SIGINT)
            own.copy(older)
            own.start()
            await journal.append(claims[0].open[0], values(2))
            own.kill(signal.SIGINT)
            own.put_back(older)
            own.start()
            with pytest.raises(LostCommits, match="has lost 1 commit that it had acknowledged"):
                await journal.append(claims[0].open[0], values(3))
            with pytest.raises(LostCommits):
                await journal.put_blob(b"x")
            await journal.close()

        asyncio.run(use())
        for read_only in (False, True):
            with pytest.raises(LostCommits, match="has lost 1 commit"):
                asyncio.run(_list(own.url, read_only))
        (finding,) = asyncio.run(check_server(own.url)).findings
        assert "has lost 1 commit" in finding.what
        # The worker of this process is gone; its lease is not over.
        own.psql("runs", "DELETE FROM holdfast.workers")
        cuts, given_up = asyncio.run(repair_server(own.url))
        assert cuts == []
        assert "has lost 1 commit" in given_up
        assert asyncio.run(_list(own.url, False)) == ["run"]


async def _list(url: str, read_only: bool) -> list[str]:
    journal = PostgresJournal(url, read_only=read_only)
    try:
        if not read_only:
            await journal.put_blob(b"y")
        return [row.name for row in await journal.runs()]
    finally:
        await journal.close()


def test_a_server_that_stays_away_ends_the_wait_at_the_deadline():
    with own_server() as own:

        async def use() -> None:
            journal = PostgresJournal(f"{own.url}&outage=2")
            _, _, claims = await ready(journal, "a", samples=1)
            own.kill()
            began = time.monotonic()
            with pytest.raises(JournalError, match=r"cannot be reached .*tried for 2 s"):
                await journal.append(claims[0].open[0], values(1))
            assert time.monotonic() - began > 1.5
            own.start()
            # That lease is of unknown outcome, and takes no more; the journal goes on.
            with pytest.raises(JournalError):
                await journal.append(claims[0].open[0], values(2))
            assert len(await journal.put_blob(b"x")) == 32
            await journal.close()

        asyncio.run(use())


def test_a_restart_ends_no_lease():
    """While the server was away nobody could renew: everyone gets the time of a lease."""
    with own_server() as own:

        async def use() -> None:
            first, second = PostgresJournal(own.url), PostgresJournal(own.url)
            run = await first.create_run(spec(samples=1), make_tasks("a"))
            worker = await first.join(run, someone_else(), lease_seconds=2.0, share=True)
            (claim,) = await first.claim(worker, groups=1)
            other = await second.join(run, someone_else(), lease_seconds=60.0, share=True)
            own.kill()
            await asyncio.sleep(2.2)
            own.start()
            assert await second.claim(other, groups=1) == []
            await first.heartbeat(worker)
            await first.append(claim.open[0], values(1))
            await first.close()
            await second.close()

        asyncio.run(use())


def test_a_process_that_is_frozen_in_a_transaction_stops_nobody_for_long(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1)
    url = server.emptied_database()

    async def use() -> None:
        frozen, other = PostgresJournal(url), PostgresJournal(url)
        run = await other.create_run(spec(), make_tasks("a"), sealed=False)
        asleep, awake = threading.Event(), threading.Event()

        def sleep(store):
            store.row("SELECT 1 FROM runs FOR UPDATE")
            asleep.set()
            awake.wait(60)

        holding = asyncio.ensure_future(frozen.transact(sleep))
        await asyncio.to_thread(asleep.wait)
        await asyncio.wait_for(other.seal(run), 30)
        awake.set()
        await holding
        await frozen.close()
        await other.close()

    asyncio.run(use())


def test_a_full_server_says_so_and_nothing_that_was_acknowledged_is_lost():
    url = server.emptied_database()

    async def use() -> None:
        journal = PostgresJournal(url)
        _, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        await journal.append(lease, values(1))
        await asyncio.to_thread(server.run_sql, url, FULL, FILL)
        with pytest.raises(JournalFull, match="is full"):
            await journal.append(lease, values(2))
        await asyncio.to_thread(
            server.run_sql,
            url,
            "DROP TRIGGER full_disk ON holdfast.records",
            "DROP FUNCTION public.full()",
        )
        assert await journal.history(lease.id) == values(1)
        await journal.close()

    asyncio.run(use())


def test_a_journal_may_be_used_in_one_event_loop_after_the_other():
    journal = PostgresJournal(server.emptied_database())
    digests = [asyncio.run(journal.put_blob(b"x")) for _ in range(2)]
    assert digests[0] == digests[1]

    async def end() -> bytes:
        blob = await journal.get_blob(digests[0])
        await journal.close()
        return blob

    assert asyncio.run(end()) == b"x"
    with pytest.raises(JournalError, match="is closed"):
        asyncio.run(journal.put_blob(b"y"))
