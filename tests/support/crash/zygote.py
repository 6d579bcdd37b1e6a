"""A process that has imported everything and forks a driver for each order it reads.

Importing takes longer than the workload; a fork takes a millisecond. The zygote never starts a
thread or a loop itself, so forking it is safe. Orders are JSON lines; the answer to each is the
driver's wait status.
"""

import argparse
import asyncio
import faulthandler
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import aiohttp  # noqa: F401

from holdfast.cli.commands.results.export import _write
from holdfast.engine.export.export import What, rows
from holdfast.engine.open_run import open_run
from holdfast.engine.running.engine import Engine
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import ScoringPolicy, Settings
from holdfast.journal import is_server
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import JournalError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import tasks_digest
from holdfast.rollout.processors.processor import as_processor
from holdfast.tasks.read import read_tasks
from holdfast.testing import crash_points
from support.journal.faulty_journal import FaultyConnections
from support.journal.faulty_server import FaultyServer

workload = importlib.import_module(f"support.crash.{sys.argv[1]}")
HANGS_AFTER = 60.0
RETRY = RetryPolicy(tries=5, deadline=60, try_timeout=20, base=0.01, cap=0.05)


def opened(where: str, io: dict):
    """The journal, and what counts its statements. `io`: which of them fails, and how."""
    if is_server(where):
        server = FaultyServer(**io)
        return PostgresJournal(where, connect=server), server
    faults = FaultyConnections(**io)
    return SqliteJournal(Path(where), connect=faults), faults


async def drive(order: dict) -> None:
    tasks = read_tasks(Path(order["tasks"]))
    spec = RunSpec(
        name="crash",
        samples=order["samples"],
        model="fake",
        sampling=Sampling(max_tokens=order["max_tokens"]),
        seed=7,
        rollout="solve",
        scorer="score",
        renderer="bytes",
        tasks=tasks_digest(tasks),
        group=GroupPolicy(keep_interrupted=True),
    )
    policy = EnginePolicy(order["url"], "fake", retry=RETRY, patience=30)
    journal, faults = opened(order["journal"], order["io"])
    try:
        await policy.check()
        run = await open_run(journal, spec, tasks)
        engine = Engine(
            run=run,
            journal=journal,
            policy=policy,
            renderer=ByteRenderer(),
            processor=as_processor(workload.solve),
            scorer=Scorer(workload.score),
            settings=Settings(
                concurrency=order["concurrency"],
                backoff=0.01,
                scoring=ScoringPolicy(tries=2),
                partial_tokens=order["partial_tokens"],
            ),
        )
        ending = await engine.work()
        if ending.fatal is not None:
            raise ending.fatal
        Path(order["out"]).with_suffix(".statements").write_text(str(len(faults.statements)))
        out = Path(order["out"])
        options = argparse.Namespace(out=str(out), format="jsonl", what="samples", force=False)
        await _write(rows(journal, run, What.SAMPLES), out, What.SAMPLES, run, options)
    finally:
        await journal.close()
        await policy.aclose()


async def _bounded(order: dict) -> None:
    """A driver that hangs says where, instead of hanging the suite."""
    job = asyncio.create_task(drive(order))
    done, _ = await asyncio.wait({job}, timeout=HANGS_AFTER)
    if not done:
        for task in asyncio.all_tasks():
            task.print_stack()
        faulthandler.dump_traceback()
        os._exit(99)
    await job


def child(order: dict) -> None:
    status = 1
    try:
        os.environ["HOLDFAST_EFFECTS"] = order["effects"]
        if order["crash"]:
            crash_points.arm(order["crash"])
        asyncio.run(_bounded(order))
        status = 0
    except JournalError as error:
        print(f"the run stopped: {error}", file=sys.stderr)
        status = 5
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
