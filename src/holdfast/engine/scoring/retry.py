"""Finds what `--retry-failed` tries again: trajectories that failed for good, and unreadable
verdicts.

A judge whose answers cannot be read gives no score. This is a failure of the judge, so it is noted
beside the score, and the judge can be asked again. A judge that says that it cannot judge (null)
has answered, and so has a scorer that returns None.
"""

from holdfast.journal.sql.journal import Journal
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary


async def unread_verdicts(journal: Journal, run: Run) -> list[int]:
    """Returns the settled trajectories that have no score because a verdict could not be read."""
    return [
        row.id
        async for row, summary in journal.summaries(run)
        if row.settled and isinstance(summary, Summary) and summary.unread
    ]


async def open_for_retry(journal: Journal, run: Run) -> tuple[int, int]:
    """Opens failed trajectories and unreadable verdicts for another try.

    Returns how many failed trajectories have new budgets now, and how many wait for a verdict
    again. Groups that a consumer has do not change.
    """
    unread = await unread_verdicts(journal, run)
    failed = await journal.reopen(run, reason="new budgets, by the user's wish")
    return failed, await journal.rescore(run, unread) if unread else 0
