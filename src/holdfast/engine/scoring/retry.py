"""What `--retry-failed` tries again: what failed for good, and verdicts that could not be read.

A judge whose answers cannot be read gives no score. That is a failure of the judge's and not its
word: it is noted beside the score, so that the judge can be asked once more. A judge that says that
it cannot judge (null), or a scorer that returns None, has answered.
"""

from collections.abc import Mapping

from holdfast.journal.journal import Journal
from holdfast.records.run import Run
from holdfast.records.step import Scored
from holdfast.records.usage import JUDGE

UNREAD = "unread"
"""Among what a judge says of itself in a score's details: its answers could not be read."""
UNREAD_JUDGE = "judge_unread"
"""Among a score's details, where a function asked the judge and made a None of its own of that."""


def is_unread(details: Mapping[str, object]) -> bool:
    """Whether a score with these details is missing because a judge could not be read."""
    judge = details.get(JUDGE)
    told = judge.get(UNREAD) if isinstance(judge, Mapping) else False
    return bool(told or details.get(UNREAD_JUDGE))


async def unread_verdicts(journal: Journal, run: Run) -> list[int]:
    """The trajectories that have no score for that reason; their last records alone are read."""
    return [
        trajectory
        for trajectory, last in (await journal.last_records(run)).items()
        if isinstance(last, Scored) and last.reward is None and is_unread(last.details)
    ]


async def open_for_retry(journal: Journal, run: Run) -> tuple[int, int]:
    """How many failed for good, and have new budgets now; and how many wait for a verdict again.
    Groups that a consumer has stay as they are."""
    unread = await unread_verdicts(journal, run)
    failed = await journal.reopen(run, reason="new budgets, by the user's wish")
    return failed, await journal.rescore(run, unread) if unread else 0
