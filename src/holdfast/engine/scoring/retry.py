"""What `--retry-failed` tries again: what failed for good, and verdicts that could not be read.

A judge whose answers cannot be read gives no score. That is a failure of the judge's and not its
word: it is noted beside the score, so that the judge can be asked once more. A judge that says that
it cannot judge (null), or a scorer that returns None, has answered.
"""

from holdfast.journal.journal import Journal
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary


async def unread_verdicts(journal: Journal, run: Run) -> list[int]:
    """The settled trajectories that have no score for that reason."""
    return [
        row.id
        async for row, summary in journal.summaries(run)
        if row.settled and isinstance(summary, Summary) and summary.unread
    ]


async def open_for_retry(journal: Journal, run: Run) -> tuple[int, int]:
    """How many failed for good, and have new budgets now; and how many wait for a verdict again.
    Groups that a consumer has stay as they are."""
    unread = await unread_verdicts(journal, run)
    failed = await journal.reopen(run, reason="new budgets, by the user's wish")
    return failed, await journal.rescore(run, unread) if unread else 0
