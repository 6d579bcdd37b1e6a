"""Reads the samples and trajectories of a run from Python, typed, one at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.engine.export.export import group_samples, groups_of, history_of
from holdfast.journal import check_journal, is_server, open_journal
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.samples.logprobs import Accepted
from holdfast.records.samples.sample import Sample
from holdfast.records.view import TrajectoryView


async def samples(
    journal: Journal | str | Path,
    run: str,
    *,
    fixed_groups: bool = False,
    logprobs: str = Accepted.PROCESSED,
) -> AsyncIterator[Sample]:
    """Yields the samples of settled and kept groups, as `export --what samples` writes them, in the
    same order.

    Logprobs may belong to another distribution than the one that the tokens were sampled from. With
    `logprobs="processed"`, raises `NotTrainable` at the first sample whose logprobs are known to
    differ in this way. With "raw", yields such samples too; `Sample.logprobs_mode` marks them.

    A journal given by its path is opened for reading, and closed at the end. Raises `UsageError` if
    there is no such run, and `JournalCorrupt`, with the trajectory's name, if a record is bad.
    """
    accepted = _accepted(logprobs)
    async with opened_to_read(journal) as opened:
        stored = await run_named(opened, run)
        for _, members in await groups_of(opened, stored):
            async for sample in group_samples(
                opened, stored, members, fixed=fixed_groups, logprobs=accepted
            ):
                yield sample


async def trajectories(journal: Journal | str | Path, run: str) -> AsyncIterator[TrajectoryView]:
    """Yields every trajectory of the run, finished or not, in the order of tasks and samples.

    Each history is read only when its trajectory is yielded. `journal` and the errors for missing
    runs and bad records are as in `samples`.
    """
    async with opened_to_read(journal) as opened:
        for task, members in await groups_of(opened, await run_named(opened, run)):
            for member in members:
                yield TrajectoryView(member.key, task, await history_of(opened, member))


def _accepted(logprobs: str) -> Accepted:
    try:
        return Accepted(logprobs)
    except ValueError:
        raise UsageError(f'logprobs is "processed" or "raw", not {logprobs!r:.100}') from None


@asynccontextmanager
async def opened_to_read(journal: Journal | str | Path) -> AsyncIterator[Journal]:
    """Yields a journal for reading.

    A journal given by its address is opened here and closed at the end. A journal object that the
    caller opened stays open.
    """
    check_journal(journal)
    if not isinstance(journal, str | Path):
        yield journal
        return
    if not is_server(journal) and not Path(journal).is_file():
        raise UsageError(f"there is no journal at {journal}")
    opened = open_journal(journal, read_only=True)
    try:
        yield opened
    finally:
        await opened.close()
