"""A claim among many workers, in a file on this disk: as a worker waits for it, and its CPU.

A claim looks at the lease of each worker of its run, and ends with a commit that is synced.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from result import Result

from holdfast.journal import open_journal
from holdfast.journal.process import this_process
from holdfast.journal.types import WorkerIdentity
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import as_tasks

FEW, MANY = 5, 500
CLAIMS = 60
ROUNDS = 3


async def claims(address: str, workers: int) -> tuple[float, float]:
    """Of one claim where so many workers hold groups: its median in ms, and the CPU of this process
    for it in ms."""
    journal = open_journal(address)
    number = workers * 2 + CLAIMS + 10
    spec = RunSpec(f"claims{workers}", 1, "m", Sampling(), 1, "", "", "", "")
    run = await journal.create_run(spec, as_tasks([{"prompt": "x"}] * number))
    for pid in range(workers):
        who = WorkerIdentity("elsewhere", pid, "")
        other = await journal.join(run, who, lease_seconds=600, share=True)
        await journal.claim(other, groups=2)
    found: list[float] = []
    cpu = 0.0
    for _ in range(CLAIMS):
        # Each by a worker that has claimed nothing yet: it looks from the first task on.
        mine = await journal.join(run, this_process(), lease_seconds=600, share=True)
        began, used = time.perf_counter(), time.process_time()
        assert len(await journal.claim(mine, groups=1)) == 1
        found.append((time.perf_counter() - began) * 1e3)
        cpu += time.process_time() - used
    await journal.close()
    return statistics.median(found), cpu / CLAIMS * 1e3


def measure() -> list[Result]:
    rounds = [_round() for _ in range(ROUNDS)]
    (few, few_cpu), (many, many_cpu) = (
        [min(one[number][part] for one in rounds) for part in range(2)] for number in (FEW, MANY)
    )
    return [
        Result("claims: in a file, at 500 workers / at 5", many / few, "×", "≤ 2",
               f"{many:.2f} ms, {few:.2f} ms"),
        Result("claims: their CPU in a file, at 500 workers / at 5", many_cpu / few_cpu, "×", "≤ 2",
               f"{many_cpu:.2f} ms, {few_cpu:.2f} ms"),
    ]  # fmt: skip


def _round() -> dict[int, tuple[float, float]]:
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        return {
            number: asyncio.run(claims(str(Path(folder) / f"{number}.db"), number))
            for number in (FEW, MANY)
        }
