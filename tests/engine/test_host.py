"""A library call changes nothing about its host: its loop, its process, what it set up."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import holdfast
from holdfast.engine.guards import loop_block
from holdfast.evaluation import EvaluateResult, evaluation_test
from holdfast.policy.rendering.renderer import ByteRenderer
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle

TASKS = [{"id": name, "prompt": f"do {name}"} for name in "abc"]
LOGGERS = ("", "holdfast", "holdfast.engine", "holdfast.gateway", "asyncio")


def host() -> dict[str, object]:
    """All that a host may have set up for itself."""
    loop = asyncio.get_running_loop()
    return {
        "clock": (loop.time.__func__, "time" in vars(loop)),
        "collector": (gc.get_threshold(), gc.isenabled(), gc.get_debug()),
        "signals": {
            valid_signal: signal.getsignal(valid_signal) for valid_signal in signal.valid_signals()
        },
        "wakeup": loop._csock.fileno(),
        "debug": (loop.get_debug(), loop.slow_callback_duration),
        "exception handler": loop.get_exception_handler(),
        "task factory": loop.get_task_factory(),
        "executor": loop._default_executor,
        "warnings": (list(warnings.filters), warnings.showwarning),
        "logging": [
            (log.level, log.propagate, log.disabled, list(log.handlers), list(log.filters))
            for log in map(logging.getLogger, LOGGERS)
        ],
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.gettrace()),
        "interpreter": (sys.getswitchinterval(), sys.getrecursionlimit(), list(sys.path)),
        "process": (dict(os.environ), os.getcwd(), sys.stdout, sys.stderr),
    }


@holdfast.tool(contract="idempotent")
def look_up(word: str) -> str:
    """In a thread."""
    return word


def in_a_loop_of_the_user(work):
    """What the host had before, while rollouts ran, and after."""

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.set_exception_handler(lambda loop, context: None)
        loop.set_task_factory(lambda loop, job, **more: asyncio.Task(job, loop=loop, **more))
        inside = []
        before = host()
        await work(inside)
        return before, inside, host()

    return asyncio.run(main())


def test_a_run_in_a_loop_of_the_user_changes_nothing_about_it(tmp_path):
    async def work(inside):
        async def solve(t: holdfast.Rollout) -> None:
            inside.append(host())
            t.add(*t.task.messages)
            await t.generate()
            await t.tool(look_up.call(word="x"), look_up)
            inside.append(host())

        def score(trajectory: holdfast.TrajectoryView) -> float:
            return 1.0

        journal = holdfast.open_journal(tmp_path / "journal.db")
        try:
            _, report = await holdfast.run(
                solve,
                tasks=TASKS,
                policy=Oracle(),
                renderer=ByteRenderer(),
                journal=journal,
                name="r",
                scorer=score,
            )
        finally:
            await journal.close()
        assert report.by_status == {"COMPLETED": 3}

    before, inside, after = in_a_loop_of_the_user(work)
    assert len(inside) == 6
    for seen in (*inside, after):
        assert seen == before


def test_an_evaluation_in_a_loop_of_the_user_changes_nothing_about_it(tmp_path):
    async def work(inside):
        async def solve(t: holdfast.Rollout) -> None:
            inside.append(host())
            t.add(*t.task.messages)
            await t.generate()

        @evaluation_test(dataset=TASKS, rollout_processor=solve)
        def judge(row):
            row.evaluation_result = EvaluateResult(score=1.0)
            return row

        outcome = await judge.evaluate_async(
            policy=Oracle(), renderer=ByteRenderer(), journal=str(tmp_path / "journal.db")
        )
        outcome.check()

    before, inside, after = in_a_loop_of_the_user(work)
    assert len(inside) == 3
    for seen in (*inside, after):
        assert seen == before


def test_code_that_blocks_a_loop_of_the_user_is_named_and_the_loop_keeps_its_clock(
    monkeypatch, caplog
):
    monkeypatch.setattr(loop_block, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(loop_block, "BLOCKED_SECONDS", 0.1)
    monkeypatch.setattr(loop_block, "WARN_SECONDS", 0.1)
    readings = []

    async def solve(t):
        def read() -> None:
            readings.append((time.monotonic(), asyncio.get_running_loop().time(), time.monotonic()))

        read()
        while not caplog.records:
            time.sleep(0.2)
        read()

    ending = asyncio.run(LocalRun("a").work(solve))
    assert "in solve" in ending.loop_blocks[0].where
    # Each reading of the loop's clock lies between two of the real one.
    (before, began, since), (until, ended, after) = readings
    assert until - since <= ended - began <= after - before
