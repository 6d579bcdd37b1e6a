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
