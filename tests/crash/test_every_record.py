"""SIGKILL at every journal record boundary, before and after the commit; resume; compare."""

import pytest

from support.crash.killable_run import (
    SIGKILLED,
    KillableRun,
    kill_and_resume,
    kill_everywhere,
    kill_in_part,
    undisturbed,
)
from support.exhaustive import points

FAST_POINTS = points(5, 14)


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with KillableRun(tmp_path_factory.mktemp("crash")) as killable:
        yield killable


def test_two_undisturbed_runs_give_the_same_bytes(killable, baseline):
    assert undisturbed(killable).samples == baseline.samples
    assert len(baseline.samples) == 23  # 24 trajectories, one with a bug in its code


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_kill_at_a_record_boundary_changes_nothing(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.parametrize("part", range(4))
def test_a_kill_right_after_a_commit_was_witnessed_changes_nothing(killable, baseline, part):
    """`after`, above, is the kill between a commit and its witness."""
    kill_in_part(killable, baseline, "witnessed", part, parts=4)


@pytest.mark.parametrize("times", [1, 2], ids=["before it has its name", "with its name"])
def test_a_kill_while_the_journal_is_created_changes_nothing(killable, baseline, times):
    assert kill_and_resume(killable, baseline, f"creating:{times}")


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after", "witnessed"])
def test_a_kill_at_every_record_boundary_changes_nothing(killable, baseline, when):
    kill_everywhere(killable, baseline, when)


@pytest.mark.parametrize("point", ["engine.finished:1", "engine.finished:13", "export.row:5"])
def test_a_kill_between_finish_and_score_or_during_export_changes_nothing(
    killable, baseline, point
):
    assert kill_and_resume(killable, baseline, point)


def test_a_killed_export_leaves_no_half_written_file(killable, baseline):
    place = killable.fresh("export")
    assert killable.drive(place, crash="export.row:9") == SIGKILLED
    assert not (place / "samples.jsonl").exists()
    assert killable.drive(place) == 0
    assert (place / "samples.jsonl").exists()
