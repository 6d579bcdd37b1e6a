"""Workspaces in real rollouts: killed between turns and in the middle of one, and back again."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.environments.workspace import Workspace
from holdfast.records.errors import RunStopped
from holdfast.records.step import Snapshotted
from support.engine.local_run import LocalRun
from support.environments.workspaces import both, running
from support.paths import SUPPORT
from support.rollout.stage import TrajectoryUnderTest, call

DRIVER = SUPPORT / "environments" / "workspace_driver.py"


def drive(journal: Path, sandbox: str, kill_at: int) -> subprocess.CompletedProcess:
    command = [sys.executable, str(DRIVER), str(journal), sandbox, str(kill_at)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


@both
@pytest.mark.parametrize("kill_at", [1, 4])
def test_a_killed_driver_s_workspace_comes_back_from_its_snapshot(tmp_path, sandbox, kill_at):
    """The token is drawn once: run again, the first command would give another."""
    killed = drive(tmp_path / "j.db", sandbox, kill_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = drive(tmp_path / "j.db", sandbox, kill_at)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    first, modes, again, last = data["said"]
    assert first == "[exit code 0]"
    token, *rest = modes.splitlines()
    assert len(token) == 24
    assert rest == ["750 regular file", "777 symbolic link", "[exit code 0]"]
    assert again == f"{token}\n[exit code 0]"
    assert last == f"{token}\nkept\nn = 3\nm=4\n[exit code 0]"
    assert data["reward"] == 1.0
    assert data["asked"] == 5 - kill_at, "turns that were over are not asked for again"


async def writing(t, say):
    """Three turns of two calls each; every second one changes what the first one reads."""
    episode = await t.env(Workspace({"log": ""}, sandbox="none"))
    for turn in range(3):
        t.add("go")
        await t.generate(tools=episode.tools)
        first = call("shell", json.dumps({"command": "wc -l < log"}))
        second = call("shell", json.dumps({"command": f"echo {turn} >> log"}), call_id="call_2")
        for result in await t.tools([first, second], *episode.tools):
            say(result.content)
    say((await episode.step("cat log")).text)


def stopped_after(steps: int):
    count = iter(range(steps))
    return lambda: next(count, None) is None


@pytest.mark.parametrize("steps", range(1, 11))
def test_a_rollout_that_stops_anywhere_ends_as_one_that_did_not(steps):
    subject, results = TrajectoryUnderTest(), []
    with pytest.raises(RunStopped):
        asyncio.run(
            subject.perform(lambda t: writing(t, results.append), stopping=stopped_after(steps))
        )
    results.clear()
    asyncio.run(subject.perform(lambda t: writing(t, results.append)))
    assert [item.removesuffix("\n[exit code 0]") for item in results] == [
        *("0", "[exit code 0]", "1", "[exit code 0]", "2", "[exit code 0]", "0\n1\n2")
    ]


def test_a_snapshot_is_taken_after_each_turn_that_did_something():
    subject = TrajectoryUnderTest()

    async def rollout(t):
        episode = await t.env(Workspace(sandbox="none"))
        for command in ("touch a", None, "touch b"):
            if command is not None:
                await episode.step(command)
            t.add("go")
            await t.generate()

    asyncio.run(subject.perform(rollout))
    records = asyncio.run(_records(subject))
    assert sum(isinstance(record, Snapshotted) for record in records) == 2


async def _records(subject: TrajectoryUnderTest) -> list[object]:
    return list(await subject.journal.history((await subject.lease()).id))


def test_what_a_policy_does_wrong_is_told_and_costs_no_attempt():
    calls = (
        call("read_file", '{"path": "../../etc/passwd"}'),
        call("edit_file", '{"path": "none", "old": "a", "new": "b"}'),
        call("shell", '{"command": "exit 1", "timeout": -1}'),
        call("shell", '{"command": ["ls"]}'),
    )

    async def rollout(t):
        t.add("go")
        await t.generate()
        episode = await t.env(Workspace())
        return [await t.tool(item, *episode.tools) for item in calls]

    results = asyncio.run(TrajectoryUnderTest().perform(rollout))
    assert [bool(result.error) for result in results] == [True] * 4
    assert "outside of the workspace" in results[0].content
    assert "No such file" in results[1].content


def test_many_agents_work_at_once_and_leave_nothing(tmp_path):
    local = LocalRun(*(f"t{number}" for number in range(8)), samples=2)
    root = tmp_path / "workspaces"

    async def rollout(t):
        episode = await t.env(Workspace({"name": t.task.id}, root=str(root)))
        t.add("go")
        await t.generate()
        seen = await episode.step("sleep 0.05; cat name")
        assert seen.text == f"{t.task.id}\n[exit code 0]"
        return (await episode.step(episode.environment.scoring("grep -q t name"))).reward

    local.run(rollout)
    assert {status for status, _ in local.statuses().values()} == {"COMPLETED"}
    (room,) = (path for path in root.iterdir() if path.is_dir())
    assert not list(room.iterdir())


def test_a_stopped_run_ends_its_commands_and_goes_on_later():
    local = LocalRun("a")
    mark = f"10{secrets.randbelow(10**9)}"
    waits = [f"sleep {mark}", "true"]
    texts = []

    async def rollout(t):
        episode = await t.env(Workspace({"sleep.sh": waits.pop(0)}))
        await episode.step("echo x >> log")
        t.add("go")
        await t.generate()
        texts.append((await episode.step("sh sleep.sh; cat log")).text)

    async def stopped():
        work = asyncio.create_task(local.work(rollout, grace=0.1))
        while not running(mark):
            assert not work.done(), await work
            await asyncio.sleep(0.01)
        local.stop.request("enough")
        await work

    asyncio.run(stopped())
    assert not running(mark)
    assert texts == []
    local.run(rollout)
    assert local.statuses()["a/0"][0] == "COMPLETED"


def test_the_public_names_are_there():
    from holdfast import environments

    assert environments.Workspace is Workspace
    assert issubclass(Workspace, holdfast.Environment)
