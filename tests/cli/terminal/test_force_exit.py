"""The process ends when the run is over, whatever user code still does."""

import contextlib
import json
import signal
import subprocess

import pytest

from holdfast.engine.guards.event_loop import OBJECTS_BETWEEN_COLLECTIONS
from support.cli.shell import end, start

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
def test_a_run_whose_code_hangs_still_ends_with_its_report(shell, code):
    shell.write("agent.py", code)
    shell.tasks("sum")
    done = shell.finished_run("--attempt-deadline", 1, "--max-retry", 0, "--group-refill", 0)
    assert "1 trajectory:" in done.out


BLOCKS = """
import time

async def solve(t):
    print("blocks", flush=True)
    while True:
        time.sleep(600)
"""


def test_a_second_signal_stops_at_once_even_what_has_stopped_the_loop(shell):
    shell.write("agent.py", BLOCKS)
    process = start(*shell.arguments(), cwd=shell.place)
    assert process.stdout.readline() == "blocks\n"
    signals = 0
    while process.poll() is None:
        # Two that come at the same time are one.
        process.send_signal(signal.SIGTERM)
        signals += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    done = end(process)
    assert signals > 1
    assert done.code == 143
    assert "stopped at once\nto go on: holdfast run agent.py" in done.err


def test_a_crash_in_native_code_shows_the_lines_that_it_was_in(shell):
    shell.write("agent.py", "import ctypes\n\nasync def solve(t):\n    ctypes.string_at(0)\n")
    done = shell.run()
    assert done.code == -signal.SIGSEGV
    assert "Segmentation fault" in done.err
    assert 'agent.py", line 4 in solve' in done.err


def test_a_line_that_stops_the_event_loop_is_named(shell):
    shell.write("agent.py", "import time\n\nasync def solve(t):\n    time.sleep(6)\n")
    shell.tasks("sum")
    done = shell.finished_run("--json")
    text = "agent.py:4 in solve (time.sleep(6)) stopped the event loop for"
    assert sum(text in line for line in done.err.splitlines()) == 2, "at once, and at the end"
    (result,) = json.loads(done.out)["loop_blocks"]
    assert result["times"] == 1


def test_in_a_process_of_ours_python_looks_for_cycles_less_often(shell):
    shell.write("agent.py", "import gc\n\nasync def solve(t):\n    return gc.get_threshold()[0]\n")
    shell.finished_run()
    assert {json.loads(line)["reward"] for line in shell.export("trajectories").splitlines()} == {
        OBJECTS_BETWEEN_COLLECTIONS
    }
