"""SIGKILL in a deletion: the journal is whole, with all of the run or nothing; then it is gone."""

import shutil
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine, end, start
from support.crash.killable_run import SIGKILLED

POINTS = [
    "before:1",
    "after:1",
    "witnessed:1",
    "compacting:1",
    "compacting:2",
    "compacting:3",
]


@pytest.fixture(scope="module")
def journal(tmp_path_factory) -> Path:
    """With runs `kept` and `gone`."""
    with FakeEngine(mean_length=400) as engine:  # Long: deleting a run frees whole pages.
        shell = CommandLine(tmp_path_factory.mktemp("shell"), engine)
        shell.finished_run("--samples", 3, run="kept")
        shell.finished_run("--samples", 3, run="gone")
    return shell.journal


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_all_of_the_run_or_nothing(journal: Path, tmp_path: Path, point: str) -> None:
    path = tmp_path / "journal.db"
    shutil.copy(journal, path)
    arguments = ("rm", "gone", "--yes", "--journal", path)
    killed = end(start(*arguments, cwd=tmp_path, env={"HOLDFAST_CRASH": point}))
    assert killed.code == SIGKILLED, killed.err
    report = check(path)
    assert report.findings == []
    assert report.runs == (2 if point == "before:1" else 1)
    assert (report.trajectories, report.tasks) == (6 * report.runs, 2 * report.runs)
    again = end(start(*arguments, cwd=tmp_path))
    assert again.code == (0 if report.runs == 2 else 2), again.err
    assert end(start("journal", "compact", path, cwd=tmp_path)).code == 0
    report = check(path)
    assert (report.findings, report.runs, report.trajectories) == ([], 1, 6)
    assert path.stat().st_size <= journal.stat().st_size
    assert exported(path) == exported(journal)


def exported(path: Path) -> str:
    arguments = ("export", "kept", "--what", "samples", "--out", "-", "--journal", path)
    return end(start(*arguments, cwd=path.parent)).out
