"""Checks a whole journal and reports its damage. `repair` changes the journal.

The check verifies every checksum and every invariant on which the writers rely, from SQLite's own
pages to the meaning of a trajectory's records (`logs`). A finding never ends the check. The report
names all findings, each with its place and its remedy. Only one trajectory is in memory at a time,
for journals of any size.

`repair` cuts torn logs to their last good record and rebuilds broken links and indexes.
`accept_loss` goes back to the last existing commit. Both write; `check` does not.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec import structs

from holdfast import crashpoint
from holdfast.journal.damage import accept_losses
from holdfast.journal.damage.pages import PARTS
from holdfast.journal.damage.repair_tables import damage_of, is_beyond_repair, mend_tables
from holdfast.journal.damage.report import Finding, Report
from holdfast.journal.damage.tables import check_tables, named_trajectories, refuse_if_held
from holdfast.journal.files import witness
from holdfast.journal.lease_clock import BootClock
from holdfast.journal.sql.store import Store
from holdfast.journal.sqlite.journal import connect_to_read, plain_connect, remove_empty_log
from holdfast.journal.sqlite.losses import Loss, find_loss
from holdfast.journal.sqlite.schema import SALVAGE, explained, log_size, prepare, refuse_second_name
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.journal.types import Cut
from holdfast.records.errors import JournalDamaged, JournalError, RunHeld


def check(path: Path) -> Report:
    """Verifies the journal at `path`. Raises an error if the file is not a journal."""
    if not path.exists():
        raise JournalError(f"there is no journal at {path}")
    refuse_second_name(path)
    report = Report(str(path), SALVAGE, bytes=path.stat().st_size + log_size(path))
    loss = find_loss(path, thoroughly=True)
    if loss is not None:
        report.add("file" if loss.is_cut else "log", loss.what, loss.remedy)
    _check_content(path, report, without_log=loss is not None and loss.without_log)
    if loss is None:
        remove_empty_log(path)
    return report


def _check_content(path: Path, report: Report, *, without_log: bool) -> None:
    with closing(connect_to_read(path, without_log=without_log)) as connection:
        store = SqliteStore(connection, BootClock().read)
        # One snapshot, because a live worker may write in the meantime.
        connection.execute("BEGIN")
        check_tables(store, report, first=(_records, *PARTS))


def _records(store: Store, report: Report) -> None:
    del report
    assert isinstance(store, SqliteStore), "made above"
    store.index_records()


# --- repair ------------------------------------------------------------------------------------


def repair(path: Path) -> list[Cut]:
    """Cuts every torn log to its last good record. Raises `RunHeld` while a live worker holds a
    run.

    The cut records are set aside in the journal, and their trajectories are open again: the next
    run continues after their last good records. Wrong links and broken indexes are rebuilt, which
    loses nothing. All of it is done, or nothing.
    """
    accept_loss(path)
    connect_to_read(path).close()  # An empty file is not a journal, and must not become one.
    with explained(path):
        connection = plain_connect(f"{path.absolute().as_uri()}?mode=rw")
    with closing(connection), explained(path):
        prepare(connection, path)
        store = SqliteStore(connection, BootClock().read)
        if is_beyond_repair(connection):
            raise JournalDamaged(f"journal {path} is damaged, too much for a repair: {SALVAGE}")
        damage = damage_of(store)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        refuse_if_held(store)
        # Torn records are searched once among all records, not once for each log.
        connection.execute("CREATE INDEX records_repair ON records(trajectory, seq)")
        mend_tables(store, damage)
        cuts = list(_cut_all(store))
        connection.execute("DROP INDEX records_repair")
        crashpoint.reach(accept_losses.STEP)
        connection.execute("COMMIT")
        crashpoint.reach(accept_losses.STEP)
    return cuts


def accept_loss(path: Path) -> str | None:
    """Goes back to the last existing commit. Returns a description of the loss; None if nothing is
    lost. Raises `RunHeld` while a live worker holds a run."""
    if not path.exists():
        raise JournalError(f"there is no journal at {path}")
    refuse_second_name(path)
    witness.remove_unfinished(path)
    if accept_losses.has_unfinished_mending(path):
        return _kept("was cut, and its mending was interrupted", accept_losses.finish_mending(path))
    loss = find_loss(path, thoroughly=True)
    if loss is None:
        return None
    try:
        _refuse_if_held(path, without_log=False)
    except RunHeld:
        raise
    except JournalError:  # A live worker's log can be read.
        if not loss.without_log:
            raise
    if loss.without_log:
        _refuse_if_held(path, without_log=True)
    if loss.is_cut:
        return _mend_cut(path, loss)
    return accept_losses.accept(path, _choose_whole(path, loss))


def _refuse_if_held(path: Path, *, without_log: bool) -> None:
    with closing(connect_to_read(path, without_log=without_log)) as connection, explained(path):
        refuse_if_held(SqliteStore(connection, BootClock().read))


def _choose_whole(path: Path, loss: Loss) -> Loss:
    """Returns `loss` with the value of `without_log` that gives a state which the journal once had.
    Raises `JournalDamaged` if neither value gives such a state.

    The file without its log may be incomplete, because a kill or a power loss can interrupt the
    copying of the log into the file. The file with the good part of its log is complete, unless
    later parts of the log were already copied. Torn logs of single trajectories are repaired
    afterwards.
    """
    findings = _findings(path, without_log=loss.without_log)
    if not findings or (not loss.without_log and _is_repairable(path)):
        return loss
    if not loss.is_foreign and not _findings(path, without_log=not loss.without_log):
        return structs.replace(loss, without_log=not loss.without_log)
    what = f"{findings[0].where}: {findings[0].what.splitlines()[0]}"
    raise JournalDamaged(
        f"journal {path} {loss.what}; neither the file alone nor with the good part of its log is "
        f"whole ({what}), and nothing was touched: put the right log back, or {SALVAGE}"
    )


def _findings(path: Path, *, without_log: bool) -> list[Finding]:
    report = Report(str(path), SALVAGE)
    try:
        _check_content(path, report, without_log=without_log)
    except JournalError as error:
        report.add("file", str(error), SALVAGE)
    return report.findings


def _is_repairable(path: Path) -> bool:
    with closing(connect_to_read(path)) as connection:
        return not is_beyond_repair(connection)


def _mend_cut(path: Path, loss: Loss) -> str:
    """Repairs a file that ends too early, completely or not at all. A file that cannot be repaired
    stays as it is, and every command refuses it."""
    copy = accept_losses.copy_to_mend(path)
    try:
        cuts = repair(copy)
        findings = check(copy).findings
        if findings:
            raise JournalDamaged(
                f"journal {path} {loss.what}, which cannot be mended ({findings[0]}): {SALVAGE}"
            )
        kept = accept_losses.take_mended(path, copy)
    finally:
        accept_losses.remove_copy(copy)
    lost = sum(cut.lost for cut in cuts)
    return _kept(f"{loss.what}; {lost} records were cut", kept)


def _kept(what: str, kept: Path) -> str:
    return f"{what}; the file as it was is kept in {kept.name}"


def _cut_all(store: SqliteStore) -> Iterator[Cut]:
    for name, (number, *_) in list(named_trajectories(store)):
        cut = store.mend_log(number, name=name)
        if cut is not None:
            yield cut
