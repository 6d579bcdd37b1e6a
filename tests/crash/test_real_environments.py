"""SIGKILL at record boundaries while the world is a folder, another process, or a game."""

import pytest

from support.crash.lab import Lab, kill_everywhere, kill_in_part, undisturbed
from support.crash.real_workload import REPLIES
from support.exhaustive import points

FAST_POINTS = points(2, 4)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with Lab(
        tmp_path_factory.mktemp("real"),
        names=("mcp0", "files0", "lake0"),
        samples=1,
        workload="real_workload",
        replies=REPLIES,
        max_tokens=300,
        faults=(),
    ) as lab:
        yield lab


@pytest.fixture(scope="module")
def baseline(lab):
    return undisturbed(lab)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_kill_at_a_record_boundary_changes_nothing(lab, baseline, when, part):
    kill_in_part(lab, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_record_boundary_changes_nothing(lab, baseline, when):
    kill_everywhere(lab, baseline, when)
