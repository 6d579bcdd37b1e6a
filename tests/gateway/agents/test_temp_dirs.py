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

from holdfast.environments.workspace import folder as folders
from holdfast.gateway.agents import temp_dirs
from holdfast.gateway.agents.temp_dirs import WORKING
from holdfast.records.trajectory import TrajectoryKey
from holdfast.testing import FakeEngine
from support.gateway.gateway_process import (
    REPLIES,
    Agent,
    GatewayProcess,
    holding,
    is_running,
    until,
    work,
)

HOLDS = """
import asyncio, subprocess, sys
from holdfast.gateway.agents.temp_dirs import WORKING, scratch, trajectory_folder
from holdfast.records.trajectory import TrajectoryKey

async def main():
    is_named = sys.argv[1:] == ["trajectory"]
    async with trajectory_folder(TrajectoryKey("r", "a", 0)) if is_named else scratch() as folder:
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
    for room in [room for room in folders._rooms.values() if room.path.startswith(str(folder))]:
        room._leave()


def left_in(temporary: Path) -> list[str]:
    """The folders that are there, but for locks and for those of processes without an agent."""
    return sorted(str(path) for path in temporary.glob("holdfast-agents-*/*/*"))


class Holder:
    """A process that has a folder, and perhaps somebody who runs in it."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, *arguments],
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
    async with temp_dirs.scratch() as folder:
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
        assert (killed.folder / temp_dirs.WORKING / "left").exists()
        assert is_running(killed.stray)
        asyncio.run(use())
        assert not killed.folder.exists()
        until(lambda: not is_running(killed.stray))
        assert (living.folder / temp_dirs.WORKING / "left").exists()
    finally:
        living.end()
    assert left_in(temporary) == []


def test_a_folder_that_cannot_be_removed_costs_no_attempt(temporary, monkeypatch, caplog):
    def cannot(path: str) -> None:
        raise folders.EnvironmentBroken(f"the workspace {path} cannot be removed: busy")

    monkeypatch.setattr(folders, "remove", cannot)
    engine = asyncio.run(use())
    assert engine.exists()
    assert "cannot be removed" in caplog.text
    monkeypatch.undo()
    folders.remove(str(engine))


def test_a_run_that_was_killed_leaves_nothing_once_it_has_gone_on(tmp_path, temporary):
    agent, driver = tmp_path / "agent.py", tmp_path / "driver.py"
    agent.write_text(AGENT)
    driver.write_text(DRIVER.format(agent=agent))
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "prompt": "do it"}) + "\n")
    came, go = tmp_path / "came", tmp_path / "go"
    env = {**os.environ, "CAME": str(came), "GO": str(go)}
    with FakeEngine() as engine:
        arguments = [
            *(sys.executable, "-m", "holdfast", "run", driver, "--run", "r", "--quiet"),
            *("--tasks", tmp_path / "tasks.jsonl", "--journal", tmp_path / "journal.db"),
            *("--policy", engine.url, "--model", engine.model),
        ]
        first = subprocess.Popen([str(word) for word in arguments], env=env)
        until(lambda: engine.stats().completions)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        (folder,) = came.read_text().split()
        assert Path(folder).exists()
        go.touch()
        done = subprocess.run([str(word) for word in arguments], env=env, timeout=60, check=False)
        assert done.returncode == 0
    first, second = came.read_text().split()
    assert first == second
    assert left_in(temporary) == []


# --- the folder of a trajectory

KEY = TrajectoryKey("r", "a", 0)
WRITES_LATE = """
import os, sys, time
os.setsid()
os.chdir("/")
print(os.getpid(), flush=True)
while True:
    open(os.path.join(os.path.dirname(os.environ["HOLDFAST_TASK"]), "files", "late"), "w").close()
    time.sleep(0.001)
"""


async def folder_of(key: TrajectoryKey) -> Path:
    async with temp_dirs.trajectory_folder(key) as folder:
        assert list(folder.iterdir()) == []
        (folder / WORKING).mkdir()
        (folder / WORKING / "left").write_text("x")
        return folder


def test_a_trajectory_has_its_folder_at_one_path_and_no_two_share_it(temporary):
    others = (TrajectoryKey("r", "a", 1), TrajectoryKey("r", "a\0", 0), TrajectoryKey("s", "a", 0))
    paths = [asyncio.run(folder_of(key)) for key in (KEY, *others, KEY)]
    assert paths[0] == paths[-1]
    assert len(set(paths)) == 4
    assert left_in(temporary) == []


def test_what_still_runs_of_an_attempt_is_ended_before_the_next_one_has_the_folder(temporary):
    """A process that left its group and its folder, of a driver that was killed."""
    holder = Holder("trajectory")
    task = holder.folder / "task.json"
    stray = subprocess.Popen(
        [sys.executable, "-c", WRITES_LATE],
        env={**os.environ, "HOLDFAST_TASK": str(task)},
        stdout=subprocess.PIPE,
    )
    try:
        assert stray.stdout.readline()
        until((holder.folder / WORKING / "late").exists)
        holder.kill()
        assert asyncio.run(folder_of(KEY)) == holder.folder
        assert stray.wait(60) == -signal.SIGKILL
    finally:
        stray.kill()
        stray.communicate()
    assert left_in(temporary) == []


def test_a_folder_that_a_living_process_has_is_not_shared(temporary, caplog):
    """A driver that was frozen, and has lost its trajectory, may wake up and remove its folder."""
    holder = Holder("trajectory")
    try:
        other = asyncio.run(folder_of(KEY))
        assert other != holder.folder
        assert "is in use elsewhere" in caplog.text
        assert (holder.folder / WORKING / "left").exists()
    finally:
        holder.end()
    assert asyncio.run(folder_of(KEY)) == holder.folder
    assert left_in(temporary) == []


def test_who_only_removes_what_was_left_is_waited_for(temporary, monkeypatch):
    """Two drivers that begin at once, after one that was killed."""
    first = asyncio.run(folder_of(KEY))
    first.mkdir(parents=True)
    removing = folders._hold(f"{first.parent}{folders.LOCK}")
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            os.close(removing)

    monkeypatch.setattr(folders.time, "sleep", sleep)
    assert asyncio.run(folder_of(KEY)) == first
    assert len(waited) == 3


def test_a_folder_that_cannot_be_emptied_is_not_used(temporary, monkeypatch, caplog):
    first = asyncio.run(folder_of(KEY))
    (first / WORKING).mkdir(parents=True)
    remove = folders.remove

    def cannot(path: str) -> None:
        if path == str(first.parent):
            raise folders.EnvironmentBroken(f"the workspace {path} cannot be removed: busy")
        remove(path)

    monkeypatch.setattr(folders, "remove", cannot)
    assert asyncio.run(folder_of(KEY)) != first
    assert "cannot be removed" in caplog.text
    monkeypatch.undo()
    folders.remove(str(first.parent))


def test_an_attempt_that_is_cancelled_while_it_gets_its_folder_does_not_keep_it(temporary):
    async def cancelled() -> None:
        getting = asyncio.create_task(folder_of(KEY))
        await asyncio.sleep(0)
        getting.cancel()
        await asyncio.wait({getting})

    first = asyncio.run(folder_of(KEY))
    asyncio.run(cancelled())
    assert asyncio.run(folder_of(KEY)) == first


ASKING_AGENT = """
import json, os, urllib.request
task = json.load(open(os.environ["HOLDFAST_TASK"]))
body = json.dumps({"model": "m", "messages": task["messages"]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["HOLDFAST_URL"] + "/v1/chat/completions",
    body, {"Content-Type": "application/json"})).read()
"""

ASKING_DRIVER = """
import sys, holdfast
solve = holdfast.BlackBoxRolloutProcessor([sys.executable, {agent!r}])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_is_somebody_elses_is_told_before_the_first_attempt(tmp_path):
    agent, driver, tmp = tmp_path / "agent.py", tmp_path / "driver.py", tmp_path / "tmp"
    agent.write_text(ASKING_AGENT)
    driver.write_text(ASKING_DRIVER.format(agent=str(agent)))
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "prompt": "do it"}) + "\n")
    theirs = tmp / f"holdfast-agents-{os.geteuid()}"
    theirs.mkdir(parents=True)
    os.chown(theirs, 1234, 1234)
    with FakeEngine() as engine:
        arguments = [
            *(sys.executable, "-m", "holdfast", "run", driver, "--run", "r", "--quiet"),
            *("--tasks", tmp_path / "tasks.jsonl", "--journal", tmp_path / "journal.db"),
            *("--policy", engine.url, "--model", engine.model),
        ]
        env = {**os.environ, "TMPDIR": str(tmp)}
        done = subprocess.run(
            [str(word) for word in arguments], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2, done.stderr
        assert "belongs to somebody else" in done.stderr
        os.chown(theirs, os.geteuid(), os.getegid())
        # Nothing has failed for good: the same command goes on.
        assert (
            subprocess.run([str(word) for word in arguments], env=env, timeout=60).returncode == 0
        )
        assert engine.stats().completions == 1


def test_workers_find_each_other_wherever_the_temporary_folder_is(tmp_path, monkeypatch):
    """A socket's address has about a hundred bytes."""
    far = tmp_path / ("f" * 90)
    far.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(far))  # Of the agents, too.
    with FakeEngine(replies=REPLIES) as engine:
        gateway = GatewayProcess(tmp_path / "o", engine, "--workers", 2, "--concurrency", 4)
        try:
            gateway.start(TMPDIR=str(far))
            until(lambda: holding(gateway) == ["0", "0"])
            assert work(gateway, Agent(gateway), Agent(gateway)) == 0, gateway.output
        finally:
            gateway.close()


def test_only_what_needs_short_addresses_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("f" * 90)))
    assert temp_dirs.root().startswith(str(tmp_path))
    assert not temp_dirs.root(for_sockets=True).startswith(str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
    assert temp_dirs.root(for_sockets=True) == temp_dirs.root()
