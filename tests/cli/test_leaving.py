"""The process ends when the run is over, whatever user code still does."""

import pytest

SWALLOWS = """
import asyncio

async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
    asyncio.create_task(hang())

async def hang():
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
"""
HANGS_IN_A_THREAD = """
import asyncio, threading

async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
    await asyncio.to_thread(threading.Event().wait)
"""


@pytest.mark.parametrize("code", [SWALLOWS, HANGS_IN_A_THREAD])
def test_a_run_whose_code_hangs_still_ends_with_its_report(lab, code):
    lab.write("agent.py", code)
    lab.tasks("sum")
    done = lab.finished_run("--attempt-deadline", 1, "--max-retry", 0, "--group-refill", 0)
    assert "1 trajectory:" in done.out
