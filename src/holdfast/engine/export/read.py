"""Reading a run from Python: what it gave, typed, one at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.engine.export.export import group_samples, groups_of, history_of
from holdfast.journal import check_journal, is_server, open_journal
from holdfast.journal.find_run import run_named
from holdfast.journal.journal import Journal
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
    """What `export --what samples` writes: of groups that are settled and kept, in its order.

    `logprobs`: "processed" raises `NotTrainable` at logprobs that are known not to be of the
    distribution that was sampled from; "raw" gives it as it is (`Sample.logprobs_mode`).

    A journal that is named by its path is opened to read, and closed at the end. `UsageError` if
    there is no such run; `JournalCorrupt` names the trajectory that cannot be read.
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
    """Every trajectory of the run, finished or not, by task and sample; read when its turn comes.

    The rest is as with `samples`.
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
    """One that is named by its address is closed at the end; one that was open stays so."""
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
