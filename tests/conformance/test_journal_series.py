"""Every journal knows the runs of a series, and lets only one of those be consumed that share."""

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import consuming, make_tasks, spec


async def in_series(journal: Journal, *names: str) -> list[Run]:
    described = [structs.replace(spec(name), series="agent") for name in names]
    return [await journal.create_run(each, make_tasks("a")) for each in described]


async def now(journal: Journal, run: Run) -> Run:
    stored_run = await journal.find_run(run.spec.name)
    assert stored_run is not None
    return stored_run


def test_a_series_lists_its_runs_in_their_order_whatever_they_are_called_now(check: Check) -> None:
    async def body(journal: Journal) -> None:
        await journal.create_run(spec("agent-3"), make_tasks("a"))
        first, second = await in_series(journal, "agent-2", "agent-1")
        await journal.rename_run(first, "kept")
        runs = await journal.find_series("agent")
        assert [run.spec.name for run in runs] == ["kept", "agent-1"]
        assert [run.spec.is_unnamed for run in runs] == [False, True]
        assert await journal.find_series("other") == []
        assert second.spec.lineage != first.spec.lineage

    check(body)


def test_of_runs_that_share_the_first_that_is_consumed_stays_the_only_one(check: Check) -> None:
    async def body(journal: Journal) -> None:
        first, second, third = await in_series(journal, "agent-1", "agent-2", "agent-3")
        assert await journal.share(second, [first]) == [first]
        assert await journal.share(second, [first]) == [first], "repeating it changes nothing"
        assert await journal.share(third, [second]) == [second]
        trainer = await consuming(journal, await now(journal, third))
        for other in (first, second):
            with pytest.raises(UsageError, match="shares trajectories with 'agent-3'"):
                await consuming(journal, await now(journal, other))
        await journal.unsubscribe(trainer)
        await consuming(journal, await now(journal, third))

    check(body)


def test_what_is_consumed_is_not_shared_any_more(check: Check) -> None:
    async def body(journal: Journal) -> None:
        first, second, third = await in_series(journal, "agent-1", "agent-2", "agent-3")
        await journal.share(second, [first])
        await consuming(journal, await now(journal, second))
        assert await journal.share(third, [first, second]) == []
        await consuming(journal, await now(journal, third))

    check(body)


def test_a_run_whose_origin_is_deleted_still_shares_with_the_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        first, second, third = await in_series(journal, "agent-1", "agent-2", "agent-3")
        await journal.share(second, [first])
        await journal.share(third, [first])
        await journal.delete_run(first)
        assert await journal.share(third, [first]) == []
        await consuming(journal, await now(journal, second))
        with pytest.raises(UsageError, match="shares trajectories with 'agent-2'"):
            await consuming(journal, await now(journal, third))

    check(body)
