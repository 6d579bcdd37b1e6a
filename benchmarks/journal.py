"""The journal: 256 concurrent appenders of 4 KB records, power-loss durable.

Compared in the same run with one commit per append (the same statements without the group) and
with a raw file under group fdatasync, the ceiling of any journal on this disk.
"""

import asyncio
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from result import Result

from holdfast.journal.process import this_process
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import ValueRecorded
from holdfast.records.task import as_tasks

APPENDERS = 256
BODY = os.urandom(4000)
SECONDS = 2.0
ROUNDS = 3


async def group_commit(folder: Path) -> tuple[float, float, float, float]:
    """Appends per second, CPU µs per append, p50 and p99 in ms."""
    journal = SqliteJournal(folder / "group.db")
    tasks = as_tasks([{"prompt": "x"}] * APPENDERS)
    spec = RunSpec("bench", 1, "m", Sampling(), 1, "", "", "", "")
    run = await journal.create_run(spec, tasks)
    worker = await journal.join(run, this_process(), lease_seconds=60, share=False)
    claims = await journal.claim(worker, groups=APPENDERS)
    waits: list[float] = []
    ends = time.perf_counter() + SECONDS

    async def appender(lease) -> None:  # type: ignore[no-untyped-def]
        number = 0
        while (began := time.perf_counter()) < ends:
            record = ValueRecorded(str(number), b"12345678", "bench", BODY)
            await journal.append(lease, [record])
            waits.append(time.perf_counter() - began)
            number += 1

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(appender(claim.open[0]) for claim in claims))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await journal.close()
    waits.sort()
    total = len(waits)
    return total / wall, cpu / total * 1e6, waits[total // 2] * 1e3, waits[total * 99 // 100] * 1e3


def one_commit_per_append(folder: Path) -> float:
    """The bare statements of one append, each in a transaction of its own."""
    SqliteJournal(folder / "single.db")  # for the schema
    connection = sqlite3.connect(folder / "single.db", isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    done, ends = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT epoch FROM trajectories WHERE id = ?", (1,)).fetchone()
        connection.execute(
            "INSERT INTO records(trajectory, seq, epoch, crc, body) VALUES (?, ?, ?, ?, ?)",
            (1, done, 1, 0, BODY),
        )
        connection.execute("COMMIT")
        done += 1
    connection.close()
    return done / SECONDS


async def raw_file(folder: Path) -> float:
    """Appends to a plain file, durable by group fdatasync, for 256 waiting coroutines."""
    queue: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
    loop = asyncio.get_running_loop()
    file = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def settle(batch: list["asyncio.Future[None]"]) -> None:
        for future in batch:
            future.set_result(None)

    def work() -> None:
        while (first := queue.get()) is not None:
            batch = [first]
            try:
                while (more := queue.get_nowait()) is not None:
                    batch.append(more)
            except Empty:
                pass
            os.writev(file, [BODY] * len(batch))
            os.fdatasync(file)
            loop.call_soon_threadsafe(settle, batch)

    thread = threading.Thread(target=work)
    thread.start()
    done, ends = 0, time.perf_counter() + SECONDS

    async def appender() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            future = loop.create_future()
            queue.put(future)
            await future
            done += 1

    await asyncio.gather(*(appender() for _ in range(APPENDERS)))
    queue.put(None)
    thread.join()
    os.close(file)
    return done / SECONDS


def measure() -> list[Result]:
    rounds = [_round() for _ in range(ROUNDS)]
    middle: Callable[[int], float] = lambda index: statistics.median(one[index] for one in rounds)  # noqa: E731
    detail = f"{middle(0):,.0f}/s grouped, {middle(4):,.0f}/s single, {middle(5):,.0f}/s raw file"
    return [
        Result("journal: group commit / one commit per append", middle(6), "×", "≥ 8", detail),
        Result("journal: group commit / raw file", 100 * middle(7), "%", "≥ 30", detail),
        Result("journal: CPU per append", middle(1), "µs", "≤ 60"),
        Result("journal: p99 / p50 of an append", middle(3) / middle(2), "×", "≤ 6",
               f"p50 {middle(2):.1f} ms, p99 {middle(3):.1f} ms"),
    ]  # fmt: skip


def _round() -> tuple[float, ...]:
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        grouped = asyncio.run(group_commit(folder))
        single = one_commit_per_append(folder)
        raw = asyncio.run(raw_file(folder))
    return (*grouped, single, raw, grouped[0] / single, grouped[0] / raw)
