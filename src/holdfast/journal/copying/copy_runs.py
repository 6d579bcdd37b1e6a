"""Copies runs between journals, files and servers in any combination, and compares the copies.

A copy has everything of a run except its leases: tasks, logs with their epochs, the order of
settling, the ledger, weight versions and blobs. The copy has a temporary name until it was compared
with the original and `journal check` has found no fault. A copy that was killed or differs
therefore never looks like a run, and the next copy begins again. The comparison reads as every
reader does, record by record, with the checksums of both sides, and it reads every row of the
ledger. All runs get their names in one transaction.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from holdfast.journal import is_server, opened_journal, shown_address
from holdfast.journal.copying import sides
from holdfast.journal.damage.check import check
from holdfast.journal.damage.report import Report
from holdfast.journal.references import references
from holdfast.journal.rules import MAX_NAME, name_taken, run_in_use
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import MEMORY, TrajectoryRow, digest_of
from holdfast.records.errors import JournalCorrupt, JournalDamaged, UsageError
from holdfast.records.run import Run

LOGS = 32
"""The number of trajectories whose logs are copied at once."""
_UNFINISHED = " (being copied)"


class CopiedRun(Struct, frozen=True):
    name: str
    trajectories: int
    records: int
    blobs: int


async def copy_runs(source: str, target: str, names: Sequence[str]) -> list[CopiedRun]:
    """Copies all runs, or the runs with these names. Raises `UsageError` if the target already has
    a run of that name."""
    if source == target:
        raise UsageError(f"{shown_address(source)} is both: name another journal to copy to")
    async with _opened(source, read_only=True) as left:
        runs = await _find_runs(left, names)
        async with _opened(target) as right:
            copied = await _copy_all(left, right, runs)
    if runs:
        await _require_sound(target)
        async with _opened(target) as right:
            copies = [(await run_named(right, _unfinished(run)), run.spec.name) for run in runs]
            await right.transact(sides.name, copies)
    return copied


@asynccontextmanager
async def _opened(where: str, *, read_only: bool = False) -> AsyncIterator[Journal]:
    if where == MEMORY:
        raise UsageError("memory: keeps nothing; name a file or a server")
    async with opened_journal(where, read_only=read_only) as journal:
        assert isinstance(journal, Journal), "opened by its address"
        yield journal


async def _require_sound(target: str) -> None:
    report = await _check(target)
    if report.findings:
        raise JournalDamaged(
            f"journal {shown_address(target)} does not pass its check with the copy in it "
            f"({report.findings[0]}); the copy keeps the name NAME{_UNFINISHED} until the journal "
            "is repaired and the same command has copied again"
        )


async def _check(where: str) -> Report:
    if not is_server(where):
        return check(Path(where))
    from holdfast.journal.damage.check_server import check_server

    return await check_server(where)


async def _find_runs(journal: Journal, names: Sequence[str]) -> list[Run]:
    """Returns the runs to copy: all runs, or the runs with these names. Call it before the other
    journal is created, so that a wrong name leaves no empty file. Raises `RunHeld` if a run is
    worked on."""
    listed = await journal.runs()
    wanted = list(names) or [row.name for row in listed if not row.name.endswith(_UNFINISHED)]
    runs = [await run_named(journal, name) for name in wanted]
    workers = {row.name: row.live_workers for row in listed}
    for run in runs:
        if workers[run.spec.name]:
            raise run_in_use(run, workers[run.spec.name])
    return runs


async def _copy_all(left: Journal, right: Journal, runs: Sequence[Run]) -> list[CopiedRun]:
    for run in runs:  # Every name is checked before the first run is copied.
        if await right.find_run(run.spec.name) is not None:
            raise name_taken(run.spec.name)
    return [await _copy(left, right, run) for run in runs]


def _unfinished(run: Run) -> str:
    """Returns the temporary name of an unfinished copy. If the run's name is too long for an
    ending, the temporary name contains a digest of the run's name instead."""
    name = run.spec.name
    if len(name) + len(_UNFINISHED) > MAX_NAME:
        name = digest_of(name.encode()).hex()
    return f"{name}{_UNFINISHED}"


async def _copy(left: Journal, right: Journal, run: Run) -> CopiedRun:
    if (before := await right.find_run(_unfinished(run))) is not None:
        await right.delete_run(before)
    image = await left.query(sides.read_image, run)
    number, numbers = await right.transact(sides.begin, image, _unfinished(run))
    records, blobs = 0, set[bytes]()
    old = [row.id for row in image.trajectories]
    for at in range(0, len(old), LOGS):
        logs = await left.query(sides.read_logs, old[at : at + LOGS])
        for body in (row[4] for log in logs.values() for row in log):
            await _copy_blobs(left, right, body, blobs)
            records += 1
        moved = {numbers[trajectory]: log for trajectory, log in logs.items() if log}
        if moved:
            await right.transact(sides.write_logs, moved)
    await right.transact(sides.finish, image, number, numbers)
    await _compare(left, right, run, image)
    return CopiedRun(run.spec.name, len(old), records, len(blobs))


async def _copy_blobs(left: Journal, right: Journal, body: bytes, done: set[bytes]) -> None:
    """Copies the blobs that the body refers to, directly or through other blobs."""
    for digest in references(body) - done:
        try:
            content = await left.get_blob(digest)
        except JournalCorrupt as error:
            if "no blob" not in str(error):
                raise
            continue  # The bytes only looked like a digest.
        done.add(digest)
        await right.put_blob(content)
        await _copy_blobs(left, right, content, done)


async def _compare(left: Journal, right: Journal, run: Run, image: sides.RunImage) -> None:
    copy = await run_named(right, _unfinished(run))
    run_image = image.comparable()
    other = (await right.query(sides.read_image, copy)).comparable()
    for part in sides.RunImage.__struct_fields__:
        if getattr(run_image, part) != getattr(other, part):
            raise _differs(run, part)
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
    task = (row.key.task, row.key.sample, row.ordinal)
    return (*task, row.status, row.settled, row.records, row.epoch, row.resting)


def _differs(run: Run, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"the copy of run {run.spec.name!r} is not the same ({what}), and keeps the name "
        f"{_unfinished(run)!r}; check both journals"
    )
