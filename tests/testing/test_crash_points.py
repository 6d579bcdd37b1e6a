"""Crash plans: one that can never strike would make its test pass."""

import subprocess
import sys

import pytest

from holdfast.records.errors import UsageError
from holdfast.testing import crash_points


@pytest.mark.parametrize("plan", ["bogus", "after", "after:0", "after:x", "no.such:1", ":3"])
def test_a_plan_that_can_never_strike_is_refused(plan):
    with pytest.raises(UsageError, match="POINT:K"):
        crash_points.arm(plan)


def test_a_command_with_such_a_plan_says_so_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "runs", "--journal", str(tmp_path / "j.db")],
        env={"HOLDFAST_CRASH": "bogus"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: a crash plan is POINT:K")
    assert len(done.stderr.splitlines()) == 1
