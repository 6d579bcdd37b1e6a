"""A start: how long it may take, what it says meanwhile, and that it can be ended at any moment."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.embedded import EmbeddedEngine, child_process
from holdfast.embedded.child_process import EngineDidNotStart
from support.embedded.held_start import BUSY, IDLE, SERVE, HeldStart
from support.embedded.processes import gone

RUN = """
from holdfast import Rollout
async def rollout(t: Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_engine_that_starts(number: signal.Signals, tmp_path: Path) -> None:
    held = HeldStart(tmp_path)
    with subprocess.Popen(SERVE, env=held.environment, stderr=subprocess.DEVNULL) as engine:
        assert held.pid() == engine.pid
        engine.send_signal(number)
        assert engine.wait(60) == -number


def test_an_engine_that_starts_ends_with_the_pipe_on_its_stdin(tmp_path: Path) -> None:
    held = HeldStart(tmp_path)
    command = [*SERVE, "--until-stdin-closes"]
    with subprocess.Popen(command, env=held.environment, stdin=subprocess.PIPE) as engine:
        held.pid()
        assert engine.stdin is not None
        engine.stdin.close()
        assert engine.wait(60) == -signal.SIGTERM


def test_an_engine_whose_parent_is_gone_before_it_looks_ends(tmp_path: Path) -> None:
    held = HeldStart(tmp_path)
    command = [*SERVE, "--until-stdin-closes"]
    reading, writing = os.pipe()
    os.close(writing)
    with subprocess.Popen(command, env=held.environment, stdin=reading) as engine:
        os.close(reading)
        assert engine.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_while_its_engine_starts_leaves_none(
    number: signal.Signals, tmp_path: Path
) -> None:
    held = HeldStart(tmp_path / "held")
    (tmp_path / "rollout.py").write_text(RUN)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "hello"}\n')
    command = [sys.executable, "-m", "holdfast", "run", "rollout.py", "--tasks", "tasks.jsonl"]
    command += ["--run", "first"]
    options = {"cwd": tmp_path, "env": held.environment, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **options) as run:
        engine = held.pid()
        assert engine != run.pid
        run.send_signal(number)
        assert gone(engine)
        assert run.wait(60) != 0


async def test_a_start_that_nobody_waits_for_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldStart(tmp_path)
    monkeypatch.setenv("PYTHONPATH", held.environment["PYTHONPATH"])
    starting = asyncio.create_task(EmbeddedEngine().start_in_thread())
    pid = await asyncio.to_thread(held.pid)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(pid)


def test_a_start_that_does_nothing_is_given_up_with_what_it_was_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldStart(tmp_path, IDLE)
    monkeypatch.setenv("PYTHONPATH", held.environment["PYTHONPATH"])
    engine = EmbeddedEngine(idle_within=5.0)
    with pytest.raises(EngineDidNotStart, match=r"did nothing for 5 s .*importing torch.*--policy"):
        engine.start()
    assert not engine.running


def test_a_start_that_gets_on_may_take_its_time_and_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldStart(tmp_path, BUSY)
    monkeypatch.setenv("PYTHONPATH", held.environment["PYTHONPATH"])
    monkeypatch.setattr(child_process, "REPORT_SECONDS", 0.5)
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if len(lines) == 10:  # Longer than it may do nothing.
            held.release()

    engine = EmbeddedEngine(idle_within=3.0, report=report)
    with pytest.raises(EngineDidNotStart, match="released"):
        engine.start()
    assert "importing torch and transformers" in lines[-1]


def test_progress_is_written_before_the_address(folder: Path) -> None:
    command = [*SERVE, "--model", str(folder), "--until-stdin-closes", "--progress"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        lines = [engine.stdout.readline().strip() for _ in range(4)]
        engine.stdin.close()
        assert engine.wait(60) == 0
    assert [line.split()[1] for line in lines[:3]] == ["importing", "loading", "checking"]
    assert lines[3].startswith("serving ")


COUNTED = """
import os, signal, threading
from holdfast.embedded import serving

signals, first, followed = [], threading.Event(), threading.Event()
read = os.read


def count(*_):
    signals.append(1)
    first.set()


def read_after_first(*arguments):
    found = read(*arguments)
    first.wait()
    return found


signal.signal(signal.SIGTERM, count)
serving.os.read = read_after_first
serving.time.sleep = lambda _: followed.set() or threading.Event().wait()
serving.end_with_stdin()
print("ready", flush=True)
while not followed.wait(0.05):
    pass
print(len(signals))
"""


def test_the_end_of_stdin_is_one_signal() -> None:
    """A second one could come when the handlers of a clean end are gone already."""
    with subprocess.Popen(
        [sys.executable, "-c", COUNTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.stdin.close()
        assert child.stdout.readline() == "1\n"
