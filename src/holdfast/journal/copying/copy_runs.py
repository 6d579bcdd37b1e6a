"""Copies runs between journals, files and servers in any combination, and compares.

A run goes over with everything: tasks, logs with their epochs, the order of settling, the ledger,
weight versions and blobs. It has another name until all of it is there, so a copy that is killed
leaves nothing that looks like a run; the next one begins anew. What is compared is what everyone
reads, record by record, with the checksums of both sides.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.journal import open_journal, shown_address
from holdfast.journal.copying import file_side, server_side
from holdfast.journal.copying.run_image import LogRow, RunImage
from holdfast.journal.find_run import run_named
from holdfast.journal.journal import Journal, TrajectoryRow
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.references import references
from holdfast.journal.rules import name_taken, run_in_use
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalCorrupt, JournalError, UsageError
from holdfast.records.run import Run

LOGS = 32
"""Trajectories whose logs are carried at once."""
_UNFINISHED = " (being copied)"


class CopiedRun(Struct, frozen=True):
    name: str
    trajectories: int
    records: int
    blobs: int


async def copy_runs(source: str, target: str, names: Sequence[str]) -> list[CopiedRun]:
    """All runs, or those with these names; `UsageError` where one exists there already."""
    if source == target:
        raise UsageError(f"{shown_address(source)} is both: name another journal to copy to")
    left: Journal = open_journal(source, read_only=True)
    try:
        runs = await _find_runs(left, names)
        right: Journal = open_journal(target)
        try:
            return await _copy_all(_Side(left), _Side(right), runs)
        finally:
            await right.close()
    finally:
        await left.close()


async def _find_runs(journal: Journal, names: Sequence[str]) -> list[Run]:
    """Before the other journal is made: one that cannot be copied leaves no empty file."""
    listed = await journal.runs()
    wanted = list(names) or [row.name for row in listed if not row.name.endswith(_UNFINISHED)]
    runs = [await run_named(journal, name) for name in wanted]
    workers = {row.name: row.live_workers for row in listed}
    for run in runs:
        if workers[run.spec.name]:
            raise run_in_use(run, workers[run.spec.name])
    return runs


async def _copy_all(left: "_Side", right: "_Side", runs: Sequence[Run]) -> list[CopiedRun]:
    for run in runs:  # All of it is known to be possible before any of it is done.
        if await right.journal.find_run(run.spec.name) is not None:
            raise name_taken(run.spec.name)
    return [await _copy(left, right, run) for run in runs]


async def _copy(left: "_Side", right: "_Side", run: Run) -> CopiedRun:
    name = run.spec.name
    unfinished = f"{name}{_UNFINISHED}"
    if (before := await right.journal.find_run(unfinished)) is not None:
        await right.journal.delete_run(before)
    image = await left.image(run)
    number, numbers = await right.begin(image, unfinished)
    records, blobs = 0, set[bytes]()
    old = [row.id for row in image.trajectories]
    for at in range(0, len(old), LOGS):
        rows = await left.logs(old[at : at + LOGS])
        for row in rows:
            await _copy_blobs(left.journal, right.journal, row.body, blobs)
        await right.write(
            [LogRow(numbers[row.trajectory], row.seq, row.epoch, row.body) for row in rows]
        )
        records += len(rows)
    await right.finish(image, number, numbers, name)
    await _compare(left.journal, right.journal, run)
    return CopiedRun(name, len(old), records, len(blobs))


async def _copy_blobs(left: Journal, right: Journal, body: bytes, done: set[bytes]) -> None:
    """Those that the body speaks of, and those that they speak of."""
    for digest in references(body) - done:
        try:
            content = await left.get_blob(digest)
        except JournalCorrupt as error:
            if "no blob" not in str(error):
                raise
            continue  # It only looked like one.
        done.add(digest)
        await right.put_blob(content)
        await _copy_blobs(left, right, content, done)


async def _compare(left: Journal, right: Journal, run: Run) -> None:
    copy = await run_named(right, run.spec.name)
    for what, one, other in (
        ("description", (run.spec, run.changes), (copy.spec, copy.changes)),
        ("tasks", await left.tasks(run), await right.tasks(copy)),
        ("progress", await left.progress(run), await right.progress(copy)),
        ("weight versions", await left.versions(run), await right.versions(copy)),
        ("consumers", await left.consumers(run), await right.consumers(copy)),
    ):
        if one != other:
            raise _differs(run, what)
    for name in await left.consumers(run):
        if await left.ledger(run, name) != await right.ledger(copy, name):
            raise _differs(run, f"ledger of {name!r}")
    await _compare_logs(left, right, run, copy)


async def _compare_logs(left: Journal, right: Journal, run: Run, copy: Run) -> None:
    theirs = right.histories(copy)
    async for row, records in left.histories(run):
        other = await anext(theirs, None)
        if other is None or _of(row) != _of(other[0]) or records != other[1]:
            raise _differs(run, f"trajectory {row.key}")
    if await anext(theirs, None) is not None:
        raise _differs(run, "number of trajectories")


def _of(row: TrajectoryRow) -> tuple[object, ...]:
    return (row.key, row.ordinal, row.status, row.settled, row.records, row.epoch, row.resting)


def _differs(run: Run, what: str) -> JournalError:
    return JournalError(
        f"the copy of run {run.spec.name!r} is not the same: its {what}; it is there, and should "
        "be deleted (holdfast rm); check both journals"
    )


class _Side:
    """One of the two journals, whichever kind it is."""

    def __init__(self, journal: Any):
        if not isinstance(journal, SqliteJournal | PostgresJournal):
            raise UsageError("memory: keeps nothing; name a file or a server")
        self.journal = journal
        self._sql: Any = server_side if isinstance(journal, PostgresJournal) else file_side

    async def image(self, run: Run) -> RunImage:
        found: RunImage = await self.journal.query(self._sql.read_image, run)
        return found

    async def logs(self, trajectories: Sequence[int]) -> list[LogRow]:
        found: list[LogRow] = await self.journal.query(self._sql.read_logs, trajectories)
        return found

    async def begin(self, image: RunImage, name: str) -> tuple[int, dict[int, int]]:
        begun: tuple[int, dict[int, int]] = await self.journal.transact(
            self._sql.begin, image, name
        )
        return begun

    async def write(self, rows: list[LogRow]) -> None:
        if rows:
            await self.journal.transact(self._sql.write_logs, rows)

    async def finish(self, image: RunImage, run: int, numbers: dict[int, int], name: str) -> None:
        await self.journal.transact(self._sql.finish, image, run, numbers, name)
