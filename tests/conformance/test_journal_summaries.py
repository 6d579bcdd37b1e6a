"""Every journal keeps summaries of settled trajectories, and gives those of the others."""

from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease, TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary, summarize
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import finished, joined, make_tasks, scored, spec, started, value
from support.simulation.model_journal import ModelJournal

KEPT = 123
"""Turns that no log here has: whoever reads them has read what is kept."""


async def settle(journal: Journal, lease: Lease, records: list[Record], **kept: int) -> None:
    lease.summary = structs.replace(summarize(History(records)), **kept)
    await journal.append(lease, records, status=Status.COMPLETED, settled=True)


async def summaries_of(
    journal: Journal, run: Run
) -> list[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
    return [each async for each in journal.summaries(run)]


async def turns_of(journal: Journal, run: Run) -> list[int]:
    summaries = await summaries_of(journal, run)
    return [summary.turns for _, summary in summaries if isinstance(summary, Summary)]


def test_summaries_are_those_of_the_logs(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a", "b", "c"))
        worker = await joined(journal, run)
        claims = await journal.claim(worker, groups=2)
        for lease in claims[0].open:
            await settle(journal, lease, [started(), value(1), finished(), scored()])
        first, second = claims[1].open
        await journal.append(first, [started(), finished()], status=Status.COMPLETED)
        await journal.append(
            second, [started(), finished(), scored()], status=Status.COMPLETED, settled=True
        )
        summaries = await summaries_of(journal, run)
        assert [row for row, _ in summaries] == await journal.trajectories(run)
        for row, summary in summaries:
            history = History(await journal.history(row.id), settled=row.settled)
            assert summary == summarize(history)
        rewards = [
            (row.key.task, summary.reward)
            for row, summary in summaries
            if isinstance(summary, Summary) and summary.reward is not None
        ]
        assert len(rewards) == 3
        assert await journal.rewards(run) == rewards
        some = [each async for each in journal.summaries(run, ordinals=[1, 7])]
        assert some == summaries[2:4]

    check(body)


def test_a_kept_summary_is_read_instead_of_the_log(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        worker = await joined(journal, run)
        (claim,) = await journal.claim(worker, groups=1)
        await settle(journal, claim.open[0], [started(), finished(), scored()], turns=KEPT)
        # The model keeps nothing but logs.
        assert await turns_of(journal, run) == [0 if isinstance(journal, ModelJournal) else KEPT]

    check(body)


def test_a_summary_that_is_not_of_the_whole_log_is_not_used(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        worker = await joined(journal, run)
        first, second = [claim.open[0] for claim in await journal.claim(worker, groups=2)]
        await settle(journal, first, [started(), finished(), scored()], turns=KEPT)
        await journal.append(first, [value(1), scored(0.25)])
        await settle(journal, second, [started(), finished(), scored()], turns=KEPT)
        row = (await journal.trajectories(run))[1]
        await journal.rescore(run, [row.id])
        assert await turns_of(journal, run) == [0, 0]
        assert await journal.rewards(run) == [("a", 0.25)]

    check(body)
