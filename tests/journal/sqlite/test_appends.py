"""Each batch sees where the logs end, whoever wrote to them before."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Lease
from holdfast.records.errors import LeaseLost
from support.records import ready, sql, values


def subject(path: Path, body: Callable[[SqliteJournal, list[Lease]], Awaitable[None]]) -> None:
    """With two trajectories that have a record each."""

    async def main() -> None:
        journal = SqliteJournal(path)
        _, _, claims = await ready(journal, "a", "b", samples=1)
        leases = [claim.open[0] for claim in claims]
        for lease in leases:
            await journal.append(lease, values(0))
        await body(journal, leases)
        await journal.close()

    asyncio.run(main())
    assert check(path).findings == []


def test_a_claim_of_another_connection_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def body(journal: SqliteJournal, leases: list[Lease]) -> None:
        sql(path, "UPDATE trajectories SET epoch = epoch + 1 WHERE id = ?", leases[0].id)
        with pytest.raises(LeaseLost):
            await journal.append(leases[0], values(1))
        await journal.append(leases[1], values(1))
        assert await journal.history(leases[0].id) == values(0)
        assert await journal.history(leases[1].id) == values(0, 1)

    subject(path, body)


def test_a_change_by_the_same_connection_is_noticed(tmp_path: Path) -> None:
    async def body(journal: SqliteJournal, leases: list[Lease]) -> None:
        await journal.transact(
            lambda store: store.run(
                "UPDATE trajectories SET epoch = epoch + 1 WHERE id = :id", id=leases[0].id
            )
        )
        with pytest.raises(LeaseLost):
            await journal.append(leases[0], values(1))

    subject(tmp_path / "journal.db", body)


def test_two_writers_take_turns_without_taking_each_others_places(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def body(journal: SqliteJournal, leases: list[Lease]) -> None:
        other = SqliteJournal(path)
        for number in range(1, 20):
            await journal.append(leases[0], values(number))
            await other.append(leases[1], values(number))
        await other.close()
        for lease in leases:
            assert await journal.history(lease.id) == values(*range(20))

    subject(path, body)


def test_a_refused_append_leaves_every_log_as_it_was(tmp_path: Path) -> None:
    async def body(journal: SqliteJournal, leases: list[Lease]) -> None:
        first, second = leases
        stale = Lease(second.key, second.id, second.ordinal, second.epoch - 1, second.status,
                      second.settled, second.next_seq)  # fmt: skip
        with pytest.raises(LeaseLost):
            await journal.append_together([(first, values(1), None), (stale, values(1), None)])
        first.broken = None
        first.next_seq = 1
        await asyncio.gather(*(journal.append(lease, values(2)) for lease in leases))
        for lease in leases:
            assert await journal.history(lease.id) == values(0, 2)

    subject(tmp_path / "journal.db", body)
