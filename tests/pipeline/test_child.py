"""A part's process: its end is noticed and brought about, whoever holds its pipes."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.pipeline import child as module
from holdfast.pipeline.child import ChildProcess, PipelinePart

LONG_SECONDS = 60.0
"""For what takes a moment: more than that is for ever."""
LEAVE_ORPHAN = (
    "import os, signal, subprocess, sys, time\n"
    "orphan = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True)\n"
    "print(orphan.pid, flush=True)\n"
)
"""It has a session of its own, and the part's pipes."""


def part(folder: Path, code: str) -> PipelinePart:
    return PipelinePart("trainer", (sys.executable, "-c", code), folder / "trainer.log")


@contextlib.contextmanager
def orphans(lines: list[str]):
    """Ends those whose pids are among the lines."""
    try:
        yield
    finally:
        for pid in (int(line) for line in lines if line.isdigit()):
            os.kill(pid, signal.SIGKILL)


async def until(lines: list[str]) -> None:
    """The part has written."""
    async with asyncio.timeout(LONG_SECONDS):
        while not lines:
            await asyncio.sleep(0.01)


async def test_an_end_is_noticed_while_another_process_holds_the_pipes(tmp_path):
    lines: list[str] = []
    with orphans(lines):
        child = ChildProcess(
            part(tmp_path, f"{LEAVE_ORPHAN}sys.exit('the last words')"),
            lambda stream, text: lines.append(text),
        )
        child.start()
        assert await asyncio.wait_for(child.wait(), LONG_SECONDS) == 1
        assert child.last_line == "the last words"


async def test_a_part_is_ended_while_another_process_holds_the_pipes(tmp_path):
    lines: list[str] = []
    with orphans(lines):
        code = f"{LEAVE_ORPHAN}time.sleep(600)"
        child = ChildProcess(part(tmp_path, code), lambda stream, text: lines.append(text))
        child.start()
        await until(lines)
        ending = child.end(within=LONG_SECONDS)
        assert await asyncio.wait_for(ending, LONG_SECONDS) == -signal.SIGTERM


async def test_what_not_even_a_kill_ends_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "KILL_SECONDS", 0.1)

    class Unending(ChildProcess):
        """As if the kernel could not end it."""

        def _end(self, code: int) -> None:
            pass

    child = Unending(part(tmp_path, "pass"), lambda stream, text: None)
    child.start()
    ending = child.end(within=0.1)
    assert await asyncio.wait_for(ending, LONG_SECONDS) == -signal.SIGKILL


async def test_nothing_is_started_without_a_log(tmp_path):
    (tmp_path / "trainer.log").mkdir()
    child = ChildProcess(part(tmp_path, "pass"), lambda stream, text: None)
    with pytest.raises(IsADirectoryError):
        child.start()
    assert not hasattr(child, "_process")


def test_no_thread_and_no_file_is_left_of_a_part_that_has_ended(tmp_path):
    async def body():
        child = ChildProcess(part(tmp_path, "print('done')"), lambda stream, text: None)
        child.start()
        assert await child.wait() == 0

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(body())
    deadline = time.monotonic() + LONG_SECONDS
    while time.monotonic() < deadline and any(
        thread.name.startswith("trainer ") for thread in threading.enumerate()
    ):
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert (tmp_path / "trainer.log").read_text() == "done\n"
