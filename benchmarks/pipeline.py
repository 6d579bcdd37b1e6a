"""Rollouts and training at the same time, against one after the other, in virtual time.

Two cores cannot show two sides that are each a machine of their own: they would measure who gets
the cores. So the sides are simulated: a rollout takes as long as the benchmark says, in slots as an
engine has them, and so does a step. What is between them is real: the pool, the pacing, the ledger
and the batches. Their own cost is measured apart, in CPU seconds, on a SQLite journal.
"""

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from result import Result

from holdfast.journal import open_journal
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.journal.types import Lease
from holdfast.pipeline.batches import PacedBatches
from holdfast.pipeline.parts import shared_journal
from holdfast.pipeline.settings import PipelineSettings
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.epochs import EpochStream
from holdfast.records.group import GroupPolicy
from holdfast.records.message import assistant, user
from holdfast.records.run import Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import AttemptStarted, Finished, Generated, Record, VersionSpan
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.testing import run_in_virtual_time
from holdfast.training.run.batches import Batches, BatchSource
from holdfast.training.settings import TrainingSettings

GROUPS, SAMPLES, STEPS = 8, 4, 30
STEP_SECONDS = 30.0
TOKENS = 256
Duration = Callable[[str, int], float]


def measure() -> list[Result]:
    return [*_ratios(), *_costs()]


# --- in virtual time


def _ratios() -> list[Result]:
    found = []
    for name, duration, staleness, bound in (
        ("equally long rollouts and steps", _even, 1, "≥ 1.6"),
        ("a long tail of lengths, staleness 2", _long, 2, "≥ 2"),
    ):
        plain = _seconds(duration, None)
        paced = _seconds(duration, PipelineSettings(max_staleness=staleness))
        detail = f"{plain / STEPS:.0f} s and {paced / STEPS:.0f} s a step, virtual"
        found.append(Result(f"async: samples/s, {name}", plain / paced, "×", bound, detail))
    return found


def _even(task: str, sample: int) -> float:
    return STEP_SECONDS * random.Random(f"{task} {sample}").uniform(0.7, 1.0)


def _long(task: str, sample: int) -> float:
    """Lognormal: the longest of a step's 32 takes about 4 times as long as the mean."""
    return STEP_SECONDS * random.Random(f"{task} {sample}").lognormvariate(-0.7, 0.9)


def _seconds(duration: Duration, paced: PipelineSettings | None) -> float:
    async def body() -> None:
        journal = MemoryJournal()
        await _train(journal, duration, paced, step_seconds=STEP_SECONDS)

    return run_in_virtual_time(body())[1]


async def _train(
    journal: Journal,
    duration: Duration,
    paced: PipelineSettings | None,
    *,
    step_seconds: float,
    waits: "list[tuple[float, float]] | None" = None,
    rolls_out: bool = True,
) -> None:
    run = await journal.create_run(_spec(), (), sealed=False)
    rolling = asyncio.create_task(_roll_out(journal, run, duration)) if rolls_out else None
    consumer = await journal.subscribe(run, "trainer", this_process(), lease_seconds=1e6)
    training = TrainingSettings.of(groups=GROUPS, samples=SAMPLES, steps=STEPS)
    tasks = [Task(id=f"t{n}", messages=(user("?"),)) for n in range(200)]
    stream = EpochStream(tasks, seed=0)
    source: BatchSource = Batches(journal, consumer, stream, training)
    if paced is not None:
        source = PacedBatches(
            journal, consumer, stream, training=training, pipeline=paced, tasks=len(tasks)
        )
    await journal.publish_version(run, "step-0", step=0, digest="0", consumer=consumer)
    for step in range(1, STEPS + 1):
        began = time.perf_counter()
        assert await source.of_step(step) is not None
        if waits is not None:
            waits.append((time.perf_counter() - began, time.process_time()))
        await asyncio.sleep(step_seconds)
        await journal.publish_version(
            run, f"step-{step}", step=step, digest=str(step), consumer=consumer
        )
        await journal.commit(consumer, step)
    await source.close()
    await journal.seal(run)
    if rolling is not None:
        await rolling


async def _roll_out(journal: Journal, run: Run, duration: Duration) -> None:
    worker = await journal.join(run, this_process(), lease_seconds=1e6, share=True)
    running: set[asyncio.Task[None]] = set()
    while not (await journal.progress(run)).is_over:
        seen = journal.changes.count
        for claim in await journal.claim(worker, groups=100):
            for lease in claim.open:
                task = asyncio.create_task(_trajectory(journal, lease, duration))
                running.add(task)
                task.add_done_callback(running.discard)
        await journal.changes.wait(seen, timeout=1.0)
    await journal.leave(worker)


async def _trajectory(journal: Journal, lease: Lease, duration: Duration) -> None:
    await asyncio.sleep(duration(lease.key.task, lease.key.sample))
    end = Finished(Status.COMPLETED, "returned", float(lease.key.sample), 1.0)
    records: list[Record] = [AttemptStarted(1, "w", 1.0), _GENERATED, end]
    await journal.append(lease, records, status=Status.COMPLETED, settled=True)


_GENERATED = Generated(
    path="0",
    fingerprint=b"f",
    base="",
    keep=0,
    delta=pack_ids(range(64)),
    ids=pack_ids(range(TOKENS)),
    logprobs=pack_logprobs([-0.5] * TOKENS),
    engine_finish_reason="stop",
    versions=(VersionSpan("step-0", 0, TOKENS),),
    message=assistant("reply"),
    added=(),
    model="model",
    sampling=Sampling(),
)


def _spec() -> RunSpec:
    return RunSpec(
        name="run",
        samples=SAMPLES,
        model="model",
        sampling=Sampling(),
        seed=0,
        rollout="r",
        scorer="",
        renderer="bytes",
        tasks="t",
        group=GroupPolicy(),
    )


# --- in real time


def _costs() -> list[Result]:
    """Everything is settled long before it is asked for: what is left is the hand-over itself."""
    waits: list[tuple[float, float]] = []

    async def body(path: Path) -> None:
        journal = open_journal(str(path))
        try:
            paced = PipelineSettings(max_staleness=1)
            await _train(journal, lambda *_: 0.0, paced, step_seconds=0.5, waits=waits)
        finally:
            await journal.close()

    with tempfile.TemporaryDirectory(dir=".") as name:
        asyncio.run(body(Path(name) / "journal.db"))
    wall = statistics.median(wait for wait, _ in waits[2:])
    cpu = statistics.median(after - before for (_, before), (_, after) in pairwise(waits[2:]))
    shape = f"{GROUPS} × {SAMPLES} samples of {TOKENS} tokens, read and checked, on SQLite"
    across = statistics.median(wait for wait, _ in _waits_across()[2:])
    return [
        Result("async: hand-over of a batch to the trainer", 1000 * wall, "ms", "≤ 10", shape),
        Result(
            "async: the same, from another process",
            1000 * across,
            "ms",
            "≤ 10",
            "the rollouter is a process of its own on the same journal",
        ),
        Result(
            "async: the pipeline's own CPU, of a step of 4.2 s",
            100 * cpu / 4.2,
            "%",
            "≤ 5",
            f"{1000 * cpu:.0f} ms, with the recording of the rollouts",
        ),
    ]


def _waits_across() -> list[tuple[float, float]]:
    """As in `_costs`, with rollouts in another process."""
    waits: list[tuple[float, float]] = []

    async def body(path: Path) -> None:
        async with shared_journal(str(path)) as journal:
            paced = PipelineSettings(max_staleness=1)
            await _train(
                journal,
                lambda *_: 0.0,
                paced,
                step_seconds=0.5,
                waits=waits,
                rolls_out=False,
            )

    with tempfile.TemporaryDirectory(dir=".") as name:
        path = Path(name) / "journal.db"
        rollouter = subprocess.Popen([sys.executable, __file__, str(path)])
        try:
            asyncio.run(body(path))
            rollouter.wait(timeout=60)
        finally:
            rollouter.kill()
            rollouter.wait()
    return waits


async def _roll_out_alone(path: str) -> None:
    async with shared_journal(path) as journal:
        while (run := await journal.find_run("run")) is None:
            await asyncio.sleep(0.05)
        await _roll_out(journal, run, lambda *_: 0.0)


if __name__ == "__main__":
    asyncio.run(_roll_out_alone(sys.argv[1]))
