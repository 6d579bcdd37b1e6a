"""The ledger: what a training step asks of the journal, at 1,000,000 trajectories and at 1,000.

Both journals are of one run that has been trained on so far: all groups settled and delivered, a
version of the weights after each step. They are filled by SQL, without the logs of trajectories,
which nothing here reads. Then steps are taken in both by turns, through the journal: tasks are
admitted, claimed and settled, a batch is taken, its weights get a name, the step is committed.
CPU of the process, medians over steps: the disk's share is the same for both.
"""

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from result import Result

from holdfast.journal.process import this_process
from holdfast.journal.sql.groups import COUNTED
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Consumer, Worker
from holdfast.records.run import Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import ValueRecorded
from holdfast.records.task import Task, as_tasks
from holdfast.records.trajectory import Status

SMALL, LARGE = 1_000, 1_000_000
SAMPLES, GROUPS_PER_STEP = 8, 16
STEPS = 25
BOUND = "≤ 1.5"

_COUNT = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count) "
_FILL = (
    _COUNT
    + """INSERT INTO tasks(run, ordinal, id, body, crc)
        SELECT :run, i, 'old-' || i, x'', 0 FROM n""",
    """INSERT INTO trajectories(run, task, sample, status, epoch, settled)
        SELECT run, ordinal, s.sample, :completed, 1, ordinal * :samples + s.sample + 1
        FROM tasks, (WITH RECURSIVE s(sample) AS
            (SELECT 0 UNION ALL SELECT sample + 1 FROM s WHERE sample + 1 < :samples)
            SELECT sample FROM s) s""",
    "UPDATE trajectories SET length = 1, last = id",
    f"""INSERT INTO task_groups(run, task, members, open, held, failed, settled)
        {COUNTED} GROUP BY run, task""",
    """UPDATE totals SET (planned, settled) = (SELECT sum(members), sum(members - open)
        FROM task_groups WHERE task_groups.run = totals.run)""",
    "UPDATE counters SET value = (SELECT max(settled) FROM trajectories) WHERE name = 'settled'",
    """INSERT INTO deliveries(run, task, consumer, state, settled, step, place, reason)
        SELECT run, task, :consumer, 1, settled, task / :groups, task % :groups, ''
        FROM task_groups""",
    """INSERT INTO versions SELECT :run, s + 1, 'step-' || s, s, hex(randomblob(32))
        FROM (SELECT DISTINCT step AS s FROM deliveries ORDER BY s)""",
    """UPDATE consumers SET committed = (SELECT max(step) FROM deliveries),
        seen = (SELECT max(settled) FROM deliveries)""",
)


class Ledger:
    """A journal of one run, and its trainer."""

    def __init__(self, journal: SqliteJournal, run: Run, consumer: Consumer, worker: Worker):
        self._journal = journal
        self._run = run
        self._consumer = consumer
        self._worker = worker
        self.costs: dict[str, list[float]] = {}

    async def step(self, number: int) -> None:
        tasks = as_tasks(_new_tasks(number))
        journal, run, consumer = self._journal, self._run, self._consumer
        await self._time("admit", lambda: journal.admit(run, tasks))
        await self._time("progress", lambda: journal.progress(run))
        claims = await self._time(
            "claim", lambda: journal.claim(self._worker, groups=GROUPS_PER_STEP)
        )
        record = ValueRecorded("0", b"12345678", "bench", b"")
        entries = [(lease, [record], Status.COMPLETED) for claim in claims for lease in claim.open]
        assert len(entries) == GROUPS_PER_STEP * SAMPLES
        await self._time("settle", lambda: journal.append_together(entries, settled=True))

        async def deliver() -> None:
            batch = await journal.next_batch(consumer, number, groups=GROUPS_PER_STEP)
            assert len(batch.groups) == GROUPS_PER_STEP
            await journal.commit(consumer, number)

        async def publish() -> None:
            name = f"step-{number}"
            assert not await journal.versions(run, name=name)
            await journal.publish_version(run, name, step=number, digest="d", consumer=consumer)

        await self._time("batch", deliver)
        await self._time("version", publish)

    async def _time(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began = time.process_time()
        result = await work()
        self.costs.setdefault(name, []).append(time.process_time() - began)
        return result

    async def close(self) -> None:
        await self._journal.close()


def _new_tasks(step: int) -> list[dict[str, object]]:
    return [{"id": f"new-{step}-{n}", "prompt": "What is 2 + 2?"} for n in range(GROUPS_PER_STEP)]


async def _build(path: Path, trajectories: int) -> Ledger:
    journal = SqliteJournal(path)
    spec = RunSpec("bench", SAMPLES, "m", Sampling(), 1, "", "", "", "")
    empty: list[Task] = []
    run = await journal.create_run(spec, empty, sealed=False)
    consumer = await journal.subscribe(run, "trainer", this_process(), lease_seconds=600)
    worker = await journal.join(run, this_process(), lease_seconds=600, share=False)
    await journal.close()
    _fill(path, trajectories // SAMPLES)
    journal = SqliteJournal(path)
    now = await journal.progress(run)
    assert (now.planned, now.settled) == (trajectories, trajectories)
    return Ledger(journal, run, consumer, worker)


def _fill(path: Path, tasks: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=-262144")
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
    found = triggers.fetchall()
    values = {
        "run": 1, "count": tasks, "completed": int(Status.COMPLETED), "samples": SAMPLES,
        "consumer": "trainer", "groups": GROUPS_PER_STEP,
    }  # fmt: skip
    connection.execute("BEGIN")
    for name, _ in found:  # What they keep is filled in at once.
        connection.execute(f"DROP TRIGGER {name}")
    for statement in _FILL:
        connection.execute(statement, values)
    for _, statement in found:
        connection.execute(statement)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def _measure(folder: Path) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    small = await _build(folder / "small.db", SMALL)
    large = await _build(folder / "large.db", LARGE)
    try:
        for number in range(STEPS):
            await small.step(LARGE + number)
            await large.step(LARGE + number)
    finally:
        await small.close()
        await large.close()
    return small.costs, large.costs


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        small, large = asyncio.run(_measure(folder))
        size = (folder / "large.db").stat().st_size / 2**20

    def ratio(title: str, what: str, detail: str = "") -> Result:
        few, many = (statistics.median(costs[what]) * 1e3 for costs in (small, large))
        figures = f"{many:.2f} ms of CPU, {few:.2f} at 1,000"
        words = f"{figures}; {detail}" if detail else figures
        return Result(f"ledger: {title}, 1,000,000 / 1,000", many / few, "×", BOUND, words)

    disk = f"{GROUPS_PER_STEP} groups of {SAMPLES}; the large journal has {size:.0f} MB"
    return [
        ratio("next_batch + commit", "batch", disk),
        ratio("admit", "admit"),
        ratio("claim", "claim"),
        ratio("settle", "settle"),
        ratio("progress", "progress"),
        ratio("name and publish a version", "version"),
    ]
