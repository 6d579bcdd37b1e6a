"""Folders of agents: gone when an attempt is, and, if the driver is killed, when the next one
comes. What belongs to a living process stays."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from outpost import is_running, until

from holdfast.environments.workspace import folder as folders
from holdfast.gateway import scratch
from holdfast.testing import FakeEngine

HOLDS = """
import asyncio, subprocess, sys
from holdfast.gateway.scratch import WORKING, scratch

async def main():
    async with scratch() as folder:
        (folder / WORKING).mkdir()
        (folder / WORKING / "left").write_text("x")
        with_stray = sys.argv[1:] == ["stray"]
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        none = subprocess.DEVNULL
        at = folder / WORKING
        stray = subprocess.Popen(words, cwd=at, stdin=none, stdout=none) if with_stray else None
        print(folder, stray.pid if stray else 0, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
AGENT = """
import json, os, time, urllib.request
task = json.load(open(os.environ["HOLDFAST_TASK"]))
body = json.dumps({"model": "m", "messages": task["messages"]}).encode()
with open(os.environ["CAME"], "a") as file:
    file.write(os.getcwd() + "\\n")
urllib.request.urlopen(urllib.request.Request(os.environ["HOLDFAST_URL"] + "/v1/chat/completions",
    body, {"Content-Type": "application/json"})).read()
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
"""
DRIVER = """
import os, sys
import holdfast

env = {{name: os.environ[name] for name in ("CAME", "GO")}}
solve = holdfast.BlackBoxRolloutProcessor([sys.executable, "{agent}"], env=env)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Everything temporary of this process, and of those that it starts, lies here."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    # It would look for its folder when this process ends.
    for room in [one for one in folders._rooms.values() if one.path.startswith(str(folder))]:
        room._leave()


def left_in(temporary: Path) -> list[str]:
    """The folders that are there, but for locks and for those of processes without an agent."""
    return sorted(str(one) for one in temporary.glob("holdfast-agents-*/*/*"))


class Holder:
    """A process that has a folder, and perhaps somebody who runs in it."""

    def __init__(self, *words: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        folder, stray = self.process.stdout.readline().split()
        self.folder, self.stray = Path(folder), int(stray)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        self.process.communicate()


async def use() -> Path:
    async with scratch.scratch() as folder:
        assert list(folder.iterdir()) == []
        (folder / "more").mkdir()
        return folder


def test_a_folder_is_gone_when_it_is_no_longer_needed(temporary):
    first, second = asyncio.run(use()), asyncio.run(use())
    assert first != second
    assert not first.exists()
    assert left_in(temporary) == []


def test_what_a_killed_process_has_left_is_removed_by_the_next_and_what_a_living_one_has_stays(
    temporary,
):
    killed, living = Holder("stray"), Holder()
    killed.kill()
    try:
        assert (killed.folder / scratch.WORKING / "left").exists()
        assert is_running(killed.stray)
        asyncio.run(use())
        assert not killed.folder.exists()
        until(lambda: not is_running(killed.stray))
        assert (living.folder / scratch.WORKING / "left").exists()
    finally:
        living.end()
    assert left_in(temporary) == []


def test_a_folder_that_cannot_be_removed_costs_no_attempt(temporary, monkeypatch, caplog):
    def cannot(path: str) -> None:
        raise folders.EnvironmentBroken(f"the workspace {path} cannot be removed: busy")

    monkeypatch.setattr(folders, "remove", cannot)
    found = asyncio.run(use())
    assert found.exists()
    assert "cannot be removed" in caplog.text
    monkeypatch.undo()
    folders.remove(str(found))


def test_a_run_that_was_killed_leaves_nothing_once_it_has_gone_on(tmp_path, temporary):
    agent, driver = tmp_path / "agent.py", tmp_path / "driver.py"
    agent.write_text(AGENT)
    driver.write_text(DRIVER.format(agent=agent))
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "prompt": "do it"}) + "\n")
    came, go = tmp_path / "came", tmp_path / "go"
    env = {**os.environ, "CAME": str(came), "GO": str(go)}
    with FakeEngine() as engine:
        words = [
            *(sys.executable, "-m", "holdfast", "run", driver, "--run", "r", "--quiet"),
            *("--tasks", tmp_path / "tasks.jsonl", "--journal", tmp_path / "journal.db"),
            *("--policy", engine.url, "--model", engine.model),
        ]
        first = subprocess.Popen([str(word) for word in words], env=env)
        until(lambda: engine.stats().completions)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        (folder,) = came.read_text().split()
        assert Path(folder).exists()
        go.touch()
        done = subprocess.run([str(word) for word in words], env=env, timeout=60, check=False)
        assert done.returncode == 0
    assert len(came.read_text().split()) == 2
    assert left_in(temporary) == []
