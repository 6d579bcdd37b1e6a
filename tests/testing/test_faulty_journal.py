"""The tools that break things break exactly what they say."""

import asyncio
import inspect
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal
from holdfast.records.errors import JournalError
from support.journal.faulty_journal import FaultyConnections, FaultyJournal, When
from support.records import make_tasks, ready, spec, values


def test_a_faulty_journal_has_every_operation() -> None:
    wanted = {name for name in vars(Journal) if not name.startswith("_")}
    assert wanted <= set(vars(FaultyJournal))
    for name in wanted:
        theirs = inspect.signature(getattr(Journal, name)).parameters
        assert list(inspect.signature(getattr(FaultyJournal, name)).parameters) == list(theirs)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
async def test_only_the_chosen_operation_fails(when: When) -> None:
    journal = FaultyJournal(MemoryJournal(), 2, when=when)
    await journal.create_run(spec(), make_tasks("a"))
    with pytest.raises(JournalError, match="on purpose"):
        await journal.create_run(spec("other"), make_tasks("a"))
    stored_run = await journal.find_run("other")
    assert (stored_run is not None) == (when is When.AFTER)
    assert journal.operations == ["create_run", "create_run", "find_run"]


async def test_an_append_that_failed_breaks_its_lease() -> None:
    journal = FaultyJournal(MemoryJournal())
    _, _, claims = await ready(journal, "a", samples=1)
    (lease,) = claims[0].open
    journal.k = len(journal.operations) + 1
    with pytest.raises(JournalError):
        await journal.append(lease, values(1))
    with pytest.raises(JournalError):
        await journal.append(lease, values(2))
    assert await journal.history(lease.id) == []


def test_iterating_fails_before_the_first_or_after_the_last() -> None:
    async def body(when: When) -> int:
        journal = FaultyJournal(MemoryJournal(), when=when)
        run, _, _ = await ready(journal, "a", samples=3)
        journal.k = len(journal.operations) + 1
        seen = []
        with suppress(JournalError):
            async for row, _ in journal.histories(run):
                seen.append(row)
            pytest.fail("it did not fail")
        return len(seen)

    assert [asyncio.run(body(when)) for when in (When.BEFORE, When.AFTER)] == [0, 3]


async def test_statements_are_counted_across_connections(tmp_path: Path) -> None:
    faults = FaultyConnections()
    journal = SqliteJournal(tmp_path / "journal.db", connect=faults)
    opened = len(faults.statements)
    await journal.create_run(spec(), make_tasks("a"))
    written = len(faults.statements)
    await journal.find_run("run")
    assert 0 < opened < written < len(faults.statements)
    assert faults.statements.count("COMMIT") == 2  # The schema, and the run.
    await journal.close()
