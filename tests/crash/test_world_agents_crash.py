"""SIGKILL of drivers whose agents work in containers, on a real engine (`make worlds`)."""

import asyncio
import os

import pytest

from holdfast.worlds.docker.provider import ContainerProvider
from support.crash.killable_run import (
    KillableRun,
    kill_everywhere,
    kill_in_part,
    undisturbed,
)

REAL = os.environ.get("HOLDFAST_WORLDS", "")
PARTS = 2
pytestmark = pytest.mark.skipif(not REAL, reason="make worlds starts a real engine")


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", REAL)
        with KillableRun(
            tmp_path_factory.mktemp("world-agents"),
            names=("start0", "latest0"),
            samples=1,
            concurrency=2,
            workload="world_agents_workload",
            faults=(),
        ) as killable:
            yield killable


@pytest.fixture(scope="module")
def baseline(killable):
    return undisturbed(killable)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield

    async def left() -> list[str]:
        provider = ContainerProvider("docker", REAL)
        try:
            infos = [*await provider.worlds(), *await provider.snapshots()]
            return [info.handle for info in infos if info.label.run == "crash"]
        finally:
            await provider.close()

    assert asyncio.run(left()) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_driver_changes_no_reply_and_no_file(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=PARTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_killed_at_every_record_boundary_changes_no_reply_and_no_file(
    killable, baseline, when
):
    kill_everywhere(killable, baseline, when)
