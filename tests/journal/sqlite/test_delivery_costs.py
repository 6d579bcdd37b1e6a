"""What is done for each step of a training run costs the same in a large run as in a small one.

Counted in instructions of SQLite's virtual machine, not in time: a scan shows, however fast it is.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable
from pathlib import Path

import pytest

from holdfast.journal.sql.groups import recount
from holdfast.journal.sqlite.journal import SqliteJournal, plain_connect
from holdfast.records.trajectory import Status
from support.records import consuming, joined, make_tasks, settle, sql
from support.records import spec as make_spec

SAMPLES = 8
SIZES = (1_000, 100_000)
OPEN_GROUPS = 64
"""Groups that are still rolled out, in either run."""
READY_GROUPS = 40
"""Groups that no consumer has taken."""


class Meter:
    """Counts what all connections of a journal do while it is switched on."""

    def __init__(self) -> None:
        self.connections: list[sqlite3.Connection] = []
        self.steps = 0

    def connect(self, uri: str) -> sqlite3.Connection:
        self.connections.append(plain_connect(uri))
        return self.connections[-1]

    async def measure(self, work: Awaitable[object]) -> int:
        self.steps = 0
        self._switch(on=True)
        try:
            await work
        finally:
            self._switch(on=False)
        return self.steps

    def _switch(self, *, on: bool) -> None:
        for connection in self.connections:
            try:
                connection.set_progress_handler(self._count if on else None, 1)
            except sqlite3.ProgrammingError:
                continue  # Closed meanwhile.

    def _count(self) -> int:
        self.steps += 1
        return 0


async def costs(path: Path, trajectories: int) -> dict[str, int]:
    """The instructions of each operation, in a run that has so many trajectories behind it."""
    meter = Meter()
    journal = SqliteJournal(path, connect=meter.connect)
    groups = trajectories // SAMPLES
    tasks = make_tasks(*(f"t{number}" for number in range(groups)))
    run = await journal.create_run(make_spec(samples=SAMPLES), tasks, sealed=False)
    sql(
        path,
        "UPDATE trajectories SET settled = id, status = ? WHERE task < ?",
        int(Status.COMPLETED),
        groups - OPEN_GROUPS,
    )
    sql(path, "UPDATE counters SET value = ? WHERE name = 'settled'", trajectories)
    await journal.transact(recount, run.id, range(groups))
    trainer = await consuming(journal, run)
    delivered = groups - OPEN_GROUPS - READY_GROUPS
    await journal.next_batch(trainer, 1, groups=delivered)
    await journal.commit(trainer, 1)
    worker, other = await joined(journal, run), await joined(journal, run)
    held = await journal.claim(other, groups=OPEN_GROUPS // 2)
    assert len(held) == OPEN_GROUPS // 2
    await journal.progress(run)  # Opens the connection that reads.
    fields: dict[str, int] = {}

    async def measured(name: str, work: Awaitable[object]) -> None:
        fields[name] = await meter.measure(work)

    new = make_tasks(*(f"new{number}" for number in range(16)))
    await measured("admit", journal.admit(run, new))
    await measured("admit again", journal.admit(run, new))
    await measured("claim", journal.claim(worker, groups=4))
    await measured("settle", settle(journal, held[0]))
    await measured("progress", journal.progress(run))
    await measured("tasks", journal.tasks(run, ordinals=[0, groups // 2, groups - 1]))
    await measured("trajectories", journal.trajectories(run, ordinals=[0, groups // 2]))
    await measured("next_batch", journal.next_batch(trainer, 2, groups=16))
    dismissed = [f"t{delivered + number}" for number in range(3)]
    await measured("dismiss", journal.dismiss(trainer, dismissed, reason="uninformative"))
    await measured("next_batch, filled up", journal.next_batch(trainer, 2, groups=16))
    await measured("next_batch, again", journal.next_batch(trainer, 2, groups=16))
    await measured("next_batch, too early", journal.next_batch(trainer, 3, groups=60))
    await measured("next_batch, too early again", journal.next_batch(trainer, 3, groups=60))
    await measured("commit", journal.commit(trainer, 2))
    await measured("take", journal.take(trainer, groups=4))
    taken = [f"t{delivered + 19 + number}" for number in range(4)]
    await measured("commit, with its groups", journal.commit(trainer, 3, groups=taken))
    await measured("publish", journal.publish_version(run, "v", step=3, digest="d"))
    await measured("heartbeat", journal.heartbeat(worker))
    await measured("leave", journal.leave(worker))
    await measured("seal", journal.seal(run))
    await journal.close()
    return fields


@pytest.mark.timeout(300)
def test_nothing_that_is_done_for_a_step_grows_with_the_run(tmp_path: Path) -> None:
    small, large = (asyncio.run(costs(tmp_path / f"{size}.db", size)) for size in SIZES)
    print({name: (small[name], large[name]) for name in small})
    grown = {
        name: (steps, large[name])
        for name, steps in small.items()
        if large[name] > 1.2 * steps + 200
    }
    assert not grown


def test_the_meter_sees_a_scan(tmp_path: Path) -> None:
    """What lists all trajectories costs more in a larger run: the test above can fail."""

    async def listing(size: int) -> int:
        meter = Meter()
        journal = SqliteJournal(tmp_path / f"{size}.db", connect=meter.connect)
        tasks = make_tasks(*(f"t{number}" for number in range(size)))
        run = await journal.create_run(make_spec(samples=1), tasks)
        await journal.trajectories(run)
        steps = await meter.measure(journal.trajectories(run))
        await journal.close()
        return steps

    assert asyncio.run(listing(1_000)) > 5 * asyncio.run(listing(100))
