"""Resuming: 10,000 finished and 1,000 unfinished trajectories, time to the first live request."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from result import Result

import holdfast
from holdfast.testing import FakeEngine

FINISHED, UNFINISHED = 10_000, 1_000
ROLLOUT = """
import holdfast

async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for _ in range(3):
        await t.generate(max_tokens=32)


"""


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(dir=".") as name, FakeEngine(mean_length=0) as engine:
        folder = Path(name)
        tasks = folder / "tasks.jsonl"
        tasks.write_text(
            "".join(
                json.dumps({"id": str(number), "prompt": f"count to {number}"}) + "\n"
                for number in range(FINISHED + UNFINISHED)
            )
        )
        asyncio.run(_prepare(engine, folder, tasks))
        seconds = _first_request(engine, folder, tasks)
    return [
        Result("resume: 10,000 finished + 1,000 open, first live request", seconds, "s", "≤ 3",
               "from the start of the process")
    ]  # fmt: skip


async def _prepare(engine: FakeEngine, folder: Path, tasks: Path) -> None:
    """A journal as a kill leaves it: the last 1,000 have one turn each."""
    from holdfast.engine.open_run import open_run
    from holdfast.engine.running.engine import Engine
    from holdfast.engine.stop import Stop
    from holdfast.policy.rendering.renderer import ByteRenderer
    from holdfast.records.run import RunSpec
    from holdfast.records.task import tasks_digest
    from holdfast.rollout.processors.processor import as_processor, fingerprint_of
    from holdfast.tasks.read import read_tasks

    file = folder / "agent.py"
    file.write_text(ROLLOUT)
    sys.path.insert(0, str(folder))
    from agent import rollout  # type: ignore[import-not-found]

    rows = read_tasks(tasks)
    stop, open_ones = Stop(), 0

    async def until_killed(t: holdfast.Rollout) -> None:
        nonlocal open_ones
        if int(t.task.id) < FINISHED:
            await rollout(t)
            return
        t.add(*t.task.messages)
        await t.generate(max_tokens=32)
        open_ones += 1
        if open_ones == UNFINISHED:
            stop.request("enough")
        await stop.event.wait()
        await t.generate(max_tokens=32)

    spec = RunSpec(
        "bench", 1, "fake", holdfast.Sampling(), 1, fingerprint_of(rollout), "", "bytes",
        tasks_digest(rows),
    )  # fmt: skip
    journal = holdfast.open_journal(folder / "journal.db")
    policy = holdfast.EnginePolicy(engine.url, "fake")
    run = await open_run(journal, spec, rows)
    await Engine(
        run=run, journal=journal, policy=policy, renderer=ByteRenderer(),
        processor=as_processor(until_killed), stop=stop,
        settings=holdfast.Settings(concurrency=UNFINISHED),
    ).work()  # fmt: skip
    await policy.aclose()
    await journal.close()


def _first_request(engine: FakeEngine, folder: Path, tasks: Path) -> float:
    engine.reset()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", str(folder / "agent.py"), "--tasks", str(tasks),
         "--policy", engine.url, "--model", "fake", "--run", "bench", "--seed", "1",
         "--journal", str(folder / "journal.db"), "--quiet"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while engine.stats().requests == 0:
            if process.poll() is not None:
                raise RuntimeError("the resumed run ended before its first request")
            time.sleep(0.005)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()
