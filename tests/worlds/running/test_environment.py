"""Worlds as environments of trajectories, on the stand-in of a container engine."""

import json
from collections.abc import Iterator

import pytest

from holdfast.testing import FakeContainers
from holdfast.worlds.running.environment import WorldEnvironment
from support.engine.local_run import LocalRun
from support.environments.workspaces import needs_bwrap
from support.rollout.stage import call

pytestmark = needs_bwrap
SPEC = "docker:busybox"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeContainers]:
    with FakeContainers() as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.address)
        yield fake


def bash(command: str):
    return call("bash", json.dumps({"command": command}))


def test_a_world_begins_with_its_files_and_a_model_edits_them(engine) -> None:
    contents = []

    async def rollout(t):
        episode = await t.env(
            WorldEnvironment(f"{SPEC},workdir=/tmp", files={"a.txt": "one two", "/b": b"2"})
        )
        t.add("go")
        await t.generate(tools=episode.tools)
        calls = [
            call("edit", json.dumps({"path": "/tmp/a.txt", "old": "two", "new": "three"})),
            call("edit", json.dumps({"path": "/tmp/a.txt", "old": "nothing", "new": ""})),
            call("write_file", json.dumps({"path": "/c/d", "content": "4"})),
            call("read_file", json.dumps({"path": "/nowhere"})),
        ]
        for each in calls:
            (reply,) = await t.tools([each], *episode.tools)
            contents.append(reply.content)
        contents.append((await episode.step("pwd; cat a.txt /b /c/d")).text)

    LocalRun("a").run(rollout)
    *replies, cat = contents
    assert cat == "/tmp\none three24"
    assert "has the text 0 times, not once" in replies[1]
    assert "cannot read /nowhere: No such file or directory" in replies[3]


def test_commands_and_tool_calls_act_in_the_world_of_their_trajectory(engine) -> None:
    outputs = []

    async def rollout(t):
        episode = await t.env(WorldEnvironment(SPEC))
        t.add("go")
        await t.generate(tools=episode.tools)
        (reply,) = await t.tools([bash("pwd; echo 1 > /a; exit 3")], *episode.tools)
        outputs.append(reply.content)
        outputs.append((await episode.step("cat /a")).text)

    run = LocalRun("a", "b")
    run.run(rollout)
    assert sorted(outputs) == sorted(["/\n[exit code 3]", "1"] * 2)
    assert (engine.containers, engine.snapshots) == ([], [])


def test_a_persistent_shell_keeps_its_folder_and_its_variables_over_a_lost_container(
    engine,
) -> None:
    outputs = []

    async def rollout(t):
        episode = await t.env(WorldEnvironment(SPEC, persistent_shell=True))
        t.add("go")
        await t.generate(tools=episode.tools)
        await t.tools([bash("mkdir -p '/it is'; cd '/it is'; export A='a b'; B=c")], *episode.tools)
        await t.tools([bash("export C=d; exit 3")], *episode.tools)
        if not outputs:
            outputs.append("killed")
            engine.kill(engine.containers[0])
        outputs.append((await episode.step('pwd; echo "$A,$B,$C"')).text)

    run = LocalRun("a")
    run.run(rollout)
    assert run.statuses() == {"a/0": ("COMPLETED", True)}
    assert outputs[-1] == "/it is\na b,,d"


def test_without_a_persistent_shell_each_command_begins_anew(engine) -> None:
    outputs = []

    async def rollout(t):
        episode = await t.env(WorldEnvironment(SPEC))
        t.add("go")
        await t.generate()
        await episode.step("cd /tmp; export A=a")
        outputs.append((await episode.step('pwd; echo "$A"')).text)

    LocalRun("a").run(rollout)
    assert outputs == ["/"]
