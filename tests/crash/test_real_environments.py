"""SIGKILL at record boundaries while the world is a folder, another process, or a game."""

import pytest

from support.crash.killable_run import KillableRun, kill_everywhere, kill_in_part
from support.crash.real_workload import REPLIES
from support.exhaustive import points

FAST_POINTS = points(2, 4)


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with KillableRun(
        tmp_path_factory.mktemp("real"),
        names=("mcp0", "files0", "lake0"),
        samples=1,
        workload="real_workload",
        replies=REPLIES,
        max_tokens=300,
        faults=(),
    ) as killable:
        yield killable


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_kill_at_a_record_boundary_changes_nothing(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_record_boundary_changes_nothing(killable, baseline, when):
    kill_everywhere(killable, baseline, when)
