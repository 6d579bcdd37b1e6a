"""Mending one log of a file that is being repaired."""

from holdfast.journal.journal import Cut
from holdfast.journal.sql import logs
from holdfast.journal.sqlite import chain
from holdfast.journal.sqlite.store import SqliteStore


def mend(store: SqliteStore, trajectory: int, *, name: str) -> Cut | None:
    """Cuts the log if it is torn, and else makes its links and status anew if they are wrong.

    A head that is lost, or counts too few, is made anew first: more records than it knows of are
    there, so none is lost. Reads without links: needs an index of the records if it is to be done
    for many.
    """
    connection = store.connection
    if chain.length(connection, trajectory) < len(chain.found(connection, trajectory)):
        chain.relink(connection, trajectory)
    rows = chain.rows_without_links(connection, trajectory)
    cut = logs.mend(store, trajectory, rows, name=name)
    if cut is None:
        chain.relink(connection, trajectory)
    return cut
