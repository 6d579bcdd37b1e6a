"""SIGKILL at record boundaries and at each step of the ledger: same data, nothing left."""

import asyncio

import pytest

from holdfast.journal import open_journal
from holdfast.testing import FakeContainers
from support.crash.killable_run import (
    KillableRun,
    kill_and_resume,
    kill_everywhere,
    kill_in_part,
)
from support.environments.workspaces import needs_bwrap

pytestmark = needs_bwrap
PARTS = 3
POINTS = (
    "worlds.planned",
    "worlds.made",
    "worlds.snapshot",
    "worlds.removing",
    "worlds.removed",
)


@pytest.fixture(scope="module")
def containers():
    with FakeContainers() as fake:
        yield fake


@pytest.fixture(scope="module")
def killable(tmp_path_factory, containers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", containers.address)
        with KillableRun(
            tmp_path_factory.mktemp("containers"),
            names=("a", "b"),
            samples=2,
            concurrency=4,
            workload="containers_workload",
            faults=(),
        ) as killable:
            yield killable


@pytest.fixture(autouse=True)
def nothing_is_left(containers):
    yield
    assert (containers.containers, containers.snapshots) == ([], [])


async def _open_rows(where) -> list[str]:
    async with open_journal(where) as journal:
        return [row.name for row in await journal.worlds()]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_a_record_boundary_leaves_no_container(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=PARTS)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_step_of_the_ledger_leaves_no_container(killable, baseline, point, number):
    assert kill_and_resume(killable, baseline, f"{point}:{number}")
    place = killable.folder / f"{point}-{number}"
    assert asyncio.run(_open_rows(killable.journal_at(place))) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_record_boundary_leaves_no_container(killable, baseline, when):
    kill_everywhere(killable, baseline, when)
