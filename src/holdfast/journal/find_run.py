"""Finding a run by the name that a user typed."""

from holdfast.journal.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run


async def run_named(journal: Journal, name: str) -> Run:
    run = await journal.find_run(name)
    if run is None:
        names = ", ".join(row.name for row in await journal.runs()) or "none"
        raise UsageError(f"there is no run {name!r} in the journal; it has: {names}")
    return run
