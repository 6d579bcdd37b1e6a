"""SIGKILL at record boundaries of every built-in processor, with worlds of every recovery level."""

import pytest

from support.crash.killable_run import KillableRun, kill_everywhere, kill_in_part, undisturbed
from support.crash.worlds_workload import REPLIES
from support.exhaustive import points

LEVELS = ("snapshot", "replay", "stateless", "restart")
NAMES = (
    *(f"player-{level}0" for level in LEVELS),
    *(f"agent-{level}0" for level in LEVELS),
    "buyer-0",
    "dialogue-0",
)
FAST_POINTS = points(4, 10)


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with KillableRun(
        tmp_path_factory.mktemp("worlds"),
        names=NAMES,
        samples=2,
        workload="worlds_workload",
        replies=REPLIES,
        max_tokens=300,
        faults=(),
    ) as killable:
        yield killable


def test_two_undisturbed_runs_give_the_same_bytes(killable, baseline):
    assert undisturbed(killable).samples == baseline.samples
    assert len(baseline.samples) == 2 * len(NAMES)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_kill_at_a_record_boundary_changes_nothing(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_record_boundary_changes_nothing(killable, baseline, when):
    kill_everywhere(killable, baseline, when)
