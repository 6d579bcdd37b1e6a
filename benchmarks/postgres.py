"""The journal on PostgreSQL: group commit, several processes, CPU, and claims among many workers.

Each figure is a ratio within one run, on a server of its own that syncs to this disk. With
`HOLDFAST_POSTGRES_URL`, on that one. The sides take turns, and each is taken at its best.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from claims import FEW, MANY, claims
from result import Result

from holdfast.journal import open_journal
from holdfast.journal.process import this_process
from holdfast.journal.sql import writer
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import ValueRecorded
from holdfast.records.task import as_tasks

APPENDERS = 64
PER_PROCESS = 8
BODY = os.urandom(4000)
SECONDS = 2.0
ROUNDS = 3
PROCESSES = 4


def _spec(name: str) -> RunSpec:
    return RunSpec(name, 1, "m", Sampling(), 1, "", "", "", "")


async def _leases(journal: Journal, name: str, number: int) -> list[Lease]:
    run = await journal.create_run(_spec(name), as_tasks([{"prompt": "x"}] * number))
    worker = await journal.join(run, this_process(), lease_seconds=600, share=True)
    return [claim.open[0] for claim in await journal.claim(worker, groups=number)]


async def append(where: str, name: str, *, appenders: int) -> tuple[float, float]:
    """Appends of 4 KB per second, and CPU of this process for each, in µs."""
    journal = open_journal(where)
    leases = await _leases(journal, name, appenders)
    ends, done = time.perf_counter() + SECONDS, 0

    async def appender(lease: Lease) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await journal.append(lease, [ValueRecorded(str(done), b"12345678", "bench", BODY)])
            done += 1

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*map(appender, leases))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await journal.close()
    return done / wall, cpu / done * 1e6


def together(url: str, number: int, label: str) -> float:
    """Appends per second of so many processes at once."""
    children = [
        subprocess.Popen(
            [sys.executable, __file__, url, f"{label}-{number}-{index}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(number)
    ]
    return sum(float(child.communicate(timeout=120)[0]) for child in children)


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database on a server that syncs to this disk."""
    OwnServer = import_module("support.journal.own_server").OwnServer  # noqa: N806

    folder = Path(tempfile.mkdtemp(dir=".", prefix=".bench-pg-")).absolute()
    folder.chmod(0o755)
    own = None
    try:
        own = OwnServer(folder)
        yield own.url
    finally:
        if own is not None:
            own.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure() -> list[Result]:
    url = os.environ.get("HOLDFAST_POSTGRES_URL")
    if url:
        return _measure(url)
    with server() as own:
        return _measure(own)


def _measure(url: str) -> list[Result]:
    rounds = [_round(url, number) for number in range(ROUNDS)]
    best = {
        name: max(each[name] for each in rounds) for name in ("grouped", "single", "one", "four")
    }
    cpu, file_cpu = (min(each[name] for each in rounds) for name in ("cpu", "file_cpu"))
    few, many = (asyncio.run(claims(url, number))[0] for number in (FEW, MANY))
    return [
        Result("postgres: group commit / one commit per append", best["grouped"] / best["single"],
               "×", "≥ 4", f"{best['grouped']:,.0f}/s grouped, {best['single']:,.0f}/s single"),
        Result("postgres: four processes / one", best["four"] / best["one"], "×", "≥ 2",
               f"{best['four']:,.0f}/s, {best['one']:,.0f}/s, {PER_PROCESS} appenders in each"),
        Result("postgres: CPU of the process per append / SQLite's", cpu / file_cpu, "×", "≤ 1.5",
               f"{cpu:.0f} µs, {file_cpu:.0f} µs in a file (which does the database's work, too)"),
        Result("postgres: a claim at 500 workers / at 5", many / few, "×", "≤ 2",
               f"{many:.2f} ms, {few:.2f} ms"),
    ]  # fmt: skip


def _round(url: str, number: int) -> dict[str, float]:
    whole = writer.MAX_ROWS
    grouped, cpu = asyncio.run(append(url, f"grouped{number}", appenders=APPENDERS))
    try:
        writer.MAX_ROWS = 1
        single, _ = asyncio.run(append(url, f"single{number}", appenders=APPENDERS))
    finally:
        writer.MAX_ROWS = whole
    with tempfile.TemporaryDirectory(dir=".") as folder:
        _, file_cpu = asyncio.run(append(f"{folder}/file.db", "file", appenders=APPENDERS))
    return {
        "grouped": grouped,
        "single": single,
        "cpu": cpu,
        "file_cpu": file_cpu,
        "one": together(url, 1, str(number)),
        "four": together(url, PROCESSES, str(number)),
    }


if __name__ == "__main__":
    rate, _ = asyncio.run(append(sys.argv[1], sys.argv[2], appenders=PER_PROCESS))
    print(rate)
