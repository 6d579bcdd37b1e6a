"""Signals: the first one ends the process only if nothing is in flight."""

import subprocess
import sys

import pytest

CODE = """
import asyncio, os, signal
from holdfast.cli.terminal.signals import Signals
from holdfast.engine.stop import Stop

async def work():
    stop = Stop()
    Signals(stop, resume="the command", is_idle=lambda: {is_idle}).watch()
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.event.wait()
    print("saved")

asyncio.run(work())
"""


@pytest.mark.parametrize(
    ("is_idle", "code", "printed", "message"),
    [(False, 0, "saved\n", "finishing what is in flight"), (True, 143, "", "stopped at once")],
)
def test_the_first_signal_ends_the_process_if_nothing_is_in_flight(is_idle, code, printed, message):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(is_idle=is_idle)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, printed)
    assert message in done.stderr
