"""What this process settled itself is not read again; whatever else there is, is."""

import asyncio

import pytest

from holdfast.evaluation.stats.results import SettledRows, results_of
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.history import History
from support.evaluation.graded_runs import retried, running, scored, truncated, with_tools, write
from support.records import spec


class Counting(MemoryJournal):
    read = 0

    async def histories(self, run):
        self.read += 1
        async for one in super().histories(run):
            yield one


def both(told, *, but=()):
    """The results as the journal has them, as they are with what was noted, and how often the
    journal was read for the latter."""

    async def main():
        journal, settled = Counting(), SettledRows()
        run = await write(journal, spec(samples=len(told)), {"a": list(told)})
        async for listed, records in journal.histories(run):
            if listed.key.sample not in but:
                settled.note(listed.key, History(records))
        whole, before = await results_of(journal, run), journal.read
        return whole, await results_of(journal, run, settled=settled), journal.read - before

    return asyncio.run(main())


def test_a_run_that_was_settled_here_is_only_listed():
    whole, noted, read = both([scored(1.0), truncated(0.5), with_tools(0.25)])
    assert noted == whole
    assert [row.score for row in noted.rows] == [1.0, 0.5, 0.25]
    assert read == 0


@pytest.mark.parametrize(
    "told",
    [[scored(1.0), retried(0.5)], [scored(1.0), running()]],
    ids=["a failure", "not settled"],
)
def test_where_anything_is_not_clean_and_settled_the_journal_is_read(told):
    whole, noted, read = both(told)
    assert noted == whole
    assert read == 1


def test_what_was_settled_elsewhere_is_read():
    whole, noted, read = both([scored(1.0), scored(0.5)], but={1})
    assert noted == whole
    assert read == 1


def test_what_has_gone_on_since_is_read():
    async def main():
        journal, settled = Counting(), SettledRows()
        run = await write(journal, spec(samples=1), {"a": [scored(1.0)]})
        async for listed, records in journal.histories(run):
            settled.note(listed.key, History(records[:-1]))
        return await results_of(journal, run, settled=settled)

    assert [row.score for row in asyncio.run(main()).rows] == [1.0]
