"""The journal: 256 concurrent appenders of 4 KB records, power-loss durable.

Compared in the same run with the same journal at one commit per append, with the bare statements
at one commit each (no event loop, no encoding, no waiting: what a loop in a script would do), and
with a raw file under group fdatasync, the ceiling of any journal on this disk.

The sides take turns, round after round, and each is taken at its best: a disk and cores that
others use too only ever take away. What the rounds gave by themselves stands beside it.
"""

import asyncio
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from result import Result

from holdfast.journal.process import this_process
from holdfast.journal.sql import writer
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import ValueRecorded
from holdfast.records.task import as_tasks

APPENDERS = 256
BODY = os.urandom(4000)
SECONDS = 1.5
ROUNDS = 5


async def append(folder: Path, *, rows: int) -> tuple[float, float, float, float]:
    """With at most `rows` per commit: appends/s, CPU µs per append, p50 and p99 in ms."""
    writer.MAX_ROWS = rows
    journal = SqliteJournal(folder / f"{rows}.db")
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


_BARE = """
    PRAGMA page_size=8192;
    PRAGMA journal_mode=WAL;
    PRAGMA synchronous=FULL;
    CREATE TABLE trajectories(id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
    INSERT INTO trajectories VALUES (1, 1);
    CREATE TABLE records(
        position INTEGER PRIMARY KEY, trajectory INTEGER NOT NULL, seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE UNIQUE INDEX records_seq ON records(trajectory, seq);
"""


def bare_statements(folder: Path) -> float:
    """The bare statements of one append, each in a transaction of its own."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.executescript(_BARE)
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
    best = {name: max(one[name] for one in rounds) for name in rounds[0]}
    quietest = max(rounds, key=lambda one: one["grouped"])

    def ratio(name: str) -> tuple[float, str]:
        each = sorted(one["grouped"] / one[name] for one in rounds)
        within = f"{each[0]:.3g} to {each[-1]:.3g}, median {statistics.median(each):.3g}"
        return best["grouped"] / best[name], f"within single rounds: {within}"

    single, bare, raw = ratio("single"), ratio("bare"), ratio("raw")
    detail = (
        f"{best['grouped']:,.0f}/s grouped; {best['single']:,.0f}/s single, "
        f"{best['bare']:,.0f}/s bare statements, {best['raw']:,.0f}/s raw file; {single[1]}"
    )
    return [
        Result("journal: group commit / one commit per append", single[0], "×", "≥ 8", detail),
        Result("journal: group commit / bare statements, one commit each", bare[0], "×", "≥ 8",
               f"without event loop, encoding, 256 waiters; {bare[1]}"),
        Result("journal: group commit / raw file", 100 * raw[0], "%", "≥ 30", raw[1]),
        Result("journal: CPU per append", min(one["cpu"] for one in rounds), "µs", "≤ 60"),
        Result("journal: p99 / p50 of an append", quietest["p99"] / quietest["p50"], "×", "≤ 6",
               f"p50 {quietest['p50']:.1f} ms, p99 {quietest['p99']:.1f} ms"),
    ]  # fmt: skip


def _round() -> dict[str, float]:
    whole = writer.MAX_ROWS
    try:
        with tempfile.TemporaryDirectory(dir=".") as name:
            folder = Path(name)
            grouped, cpu, p50, p99 = asyncio.run(append(folder, rows=whole))
            raw = asyncio.run(raw_file(folder))
            single = asyncio.run(append(folder, rows=1))[0]
            bare = bare_statements(folder)
    finally:
        writer.MAX_ROWS = whole
    return {
        "grouped": grouped, "single": single, "bare": bare, "raw": raw, "cpu": cpu, "p50": p50,
        "p99": p99,
    }  # fmt: skip
