"""Standstills: blocking code in one rollout costs the others nothing but time, and is found."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.engine.guards import loop_block
from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.guards.loop_block import LoopBlock, sleep_real_time, watch_loop
from holdfast.engine.running.engine import Ending
from holdfast.records.trajectory import Status
from holdfast.rollout.replay import prompt
from holdfast.rollout.tools.tool import Tool
from support.engine.local_run import LocalRun
from support.rollout.stage import call


@pytest.fixture
def quickly(monkeypatch):
    """Less patience than usual."""
    monkeypatch.setattr(loop_block, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(loop_block, "BLOCKED_SECONDS", 0.3)
    monkeypatch.setattr(loop_block, "WARN_SECONDS", 1.0)


@pytest.fixture
def logged():
    """Set when a standstill is told."""
    event = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: event.set()
    logger = logging.getLogger("holdfast.engine")
    logger.addHandler(handler)
    yield event
    logger.removeHandler(handler)


def blocks_of(ending: Ending, line: str) -> list[LoopBlock]:
    """Those that a line caused: on a busy machine others may be found as well."""
    return [block for block in ending.loop_blocks if line in block.where]


async def something_in(begun: list[int]) -> None:
    while not begun:
        await asyncio.sleep(0)


def test_a_rollout_that_blocks_the_loop_lets_nobody_elses_tool_time_out(quickly):
    begun, timed_out = [], []

    async def look() -> str:
        begun.append(1)
        await asyncio.sleep(0.5)
        return "seen"

    tool = Tool(look, timeout=1)

    async def solve(t):
        if t.task.id == "blocks":
            await something_in(begun)
            time.sleep(1.5)
        else:
            result = await t.tool(call("look"), tool)
            timed_out.append(result.error)

    local = LocalRun("blocks", "looks")
    run_in_own_loop(local.work(solve))
    assert timed_out == [""]


def test_an_attempts_deadline_does_not_run_out_while_another_blocks_the_loop(quickly):
    begun = []

    async def solve(t):
        if t.task.id == "blocks":
            await something_in(begun)
            time.sleep(2)
        else:
            begun.append(1)
            for _ in range(5):
                await asyncio.sleep(0.1)

    local = LocalRun("blocks", "waits")
    run_in_own_loop(local.work(solve, attempt_deadline=1.5))
    assert len(begun) == 1
    (run,) = asyncio.run(local.journal.runs())
    assert run.by_status == {Status.COMPLETED.name: 2}


def test_a_limit_in_seconds_counts_no_standstill_of_another(quickly):
    begun = []

    async def solve(t):
        if t.task.id == "blocks":
            await something_in(begun)
            time.sleep(3)
            return
        t.limit(seconds=2)
        begun.append(1)
        await t.tool(look.call(), look)
        await t.generate()

    async def wait() -> str:
        await asyncio.sleep(0.1)
        return "seen"

    look = Tool(wait, name="look")
    local = LocalRun("blocks", "limited")
    run_in_own_loop(local.work(solve))
    (run,) = asyncio.run(local.journal.runs())
    assert run.by_status == {Status.COMPLETED.name: 2}


def test_a_key_in_the_line_that_blocks_is_not_told(quickly, logged, caplog):
    async def solve(t):
        assert logged.wait(60), "api_key=sk-1234567890abcdefghij"

    ending = asyncio.run(LocalRun("a").work(solve))
    text = caplog.text + str(ending.loop_blocks)
    assert "logged.wait(60)" in text
    assert "sk-1234567890" not in text


def test_the_line_that_blocks_is_told_while_it_lasts_and_at_the_end(quickly, logged, caplog):
    async def solve(t):
        if t.task.id == "a":
            assert logged.wait(60)  # The culprit.
        else:
            await asyncio.sleep(0)

    ending = asyncio.run(LocalRun("a", "b").work(solve))
    (result,) = blocks_of(ending, "in solve (assert logged.wait(60)")
    assert result.where.startswith("test_loop_block.py:")
    assert result.times == 1
    assert result.seconds >= result.longest >= 1.0
    (message,) = [message for message in caplog.messages if "assert logged.wait(60)" in message]
    assert "asyncio.to_thread" in message


def test_short_ones_of_one_line_are_added_up(quickly, logged):
    async def solve(t):
        while not logged.is_set():
            time.sleep(0.8)
            await asyncio.sleep(0.1)

    ending = asyncio.run(LocalRun("a").work(solve))
    (result,) = blocks_of(ending, "time.sleep(0.8)")
    assert result.times > 1


def test_a_loop_with_much_to_do_stands_not_still(quickly):
    async def work():
        time.sleep(0.01)

    async def main():
        with watch_loop() as watch:
            await asyncio.gather(*(work() for _ in range(200)))
            return watch.found

    assert asyncio.run(main()) == ()


def test_what_others_wait_for_is_not_put_off_by_a_standstill(quickly):
    order = []

    async def note(name, sleeping):
        await sleeping
        order.append(name)

    async def main():
        with watch_loop():
            jobs = [
                asyncio.create_task(note("in the loop's time", asyncio.sleep(1))),
                asyncio.create_task(note("in real time", sleep_real_time(1))),
            ]
            await asyncio.sleep(0)
            time.sleep(1.5)
            await asyncio.gather(*jobs)

    run_in_own_loop(main())
    assert order == ["in real time", "in the loop's time"]


def test_the_loops_clock_never_goes_back_or_jumps_when_nobody_watches(quickly):
    async def main():
        loop = asyncio.get_running_loop()
        with watch_loop(), watch_loop():
            time.sleep(1)
            inside = loop.time()
        before = loop.time()
        time.sleep(0.6)
        return inside, before, loop.time(), time.monotonic()

    inside, before, after, real = run_in_own_loop(main())
    assert inside <= before
    assert after - before >= 0.6
    assert real - after >= 0.6, "all but the first 0.3 s"


def test_timers_of_a_loop_that_is_always_late_still_fire(quickly):
    async def main():
        turns = 0
        with watch_loop():
            timer = asyncio.create_task(asyncio.sleep(0.5))
            while not timer.done():
                time.sleep(0.4)
                await asyncio.sleep(0)
                turns += 1
        return turns

    assert run_in_own_loop(main()) < 10


STOPPED = """
import asyncio, sys
from holdfast.engine.guards import loop_block
loop_block.BEAT_SECONDS, loop_block.BLOCKED_SECONDS, loop_block.WARN_SECONDS = 0.02, 0.2, 0.2

async def main():
    with loop_block.watch_loop() as watch:
        print("watching", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print(len(watch.found), flush=True)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_blames_nobody(tmp_path: Path):
    child = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "watching\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(1)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        out, _ = child.communicate("\n")
    assert out == "0\n"


async def test_who_sleeps_for_next_to_nothing_lets_others_have_their_turn():
    async def restless():
        while True:
            await sleep_real_time(1e-9)

    task = asyncio.create_task(restless())
    await asyncio.sleep(0)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)


def test_what_keeps_the_interpreter_to_itself_is_found_when_it_lets_go(
    quickly, logged, caplog, monkeypatch
):
    # However little of its time a busy machine gives to this process.
    monkeypatch.setattr(loop_block, "_CPU_SHARE", 0.001)

    async def solve(t):
        numbers = 1_000_000
        while not logged.is_set() and numbers < 10**11:
            sum(range(numbers))  # In C: no other thread runs meanwhile.
            numbers *= 2

    asyncio.run(LocalRun("a").work(solve))
    assert "in solve (sum(range(numbers))" in caplog.text


def test_a_standstill_of_ours_is_not_blamed_on_the_line_that_waits_for_it(
    quickly, logged, caplog, monkeypatch
):
    library = {"logged": logged, "pack": prompt.pack_ids}
    code = "def pack_ids(ids):\n    assert logged.wait(60)\n    return pack(ids)"
    exec(compile(code, "/opt/site-packages/library.py", "exec"), library)
    monkeypatch.setattr(prompt, "pack_ids", library["pack_ids"])

    async def solve(t):
        t.add("hello")
        await t.generate()

    asyncio.run(LocalRun("a").work(solve))
    assert "holdfast's own prompt.py" in caplog.text
    assert "in next_prompt" in caplog.text
    assert "this is not a mistake of yours" in caplog.text
    assert "to_thread" not in caplog.text, "nobody is told to mend our line"
