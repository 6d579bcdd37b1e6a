"""Finds a run by the name that a user typed."""

from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.bounds import check_characters
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.records.run import Run

MAX_NAMED = 10


async def run_named(journal: Journal, name: str) -> Run:
    """Returns the run with that name. Raises `UsageError` if there is no such run."""
    if not isinstance(name, str):
        raise UsageError(f"a run is named by its name, a text, not {name!r:.100}")
    check_characters("run", name)
    run = await journal.find_run(name)
    if run is None:
        raise UsageError(f"there is no run {name!r} in the journal; {await _others(journal, name)}")
    return run


async def _others(journal: Journal, name: str) -> str:
    names = [row.name for row in await journal.runs()]
    if near := nearest(name, names):
        return f"did you mean {near}? (`holdfast runs` lists all {len(names)})"
    more = f", … (`holdfast runs` lists all {len(names)})" if len(names) > MAX_NAMED else ""
    return f"it has: {', '.join(names[:MAX_NAMED]) or 'none'}{more}"
