"""A whole run on a disk that fails: once, or for good; before the work is done, or after it."""

import pytest

from support.crash.killable_run import KillableRun, undisturbed, verify
from support.exhaustive import points
from support.journal.faulty_journal import DISK_FULL

STOPPED = 5
FAST_POINTS = points(4, 10)
FOR_GOOD = 10**9


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    with KillableRun(tmp_path_factory.mktemp("io")) as killable:
        yield killable


@pytest.fixture(scope="module")
def statements(killable, baseline) -> int:
    return int((killable.folder / "undisturbed" / "samples.statements").read_text())


def fail_and_resume(killable, baseline, k: int, when: str, times: int, message: str) -> int:
    place = killable.fresh(f"io-{k}-{when}-{times}")
    code = killable.drive(place, k=k, when=when, times=times, message=message)
    assert code in (0, STOPPED), (k, when, times)
    before = killable.world(place)
    assert killable.drive(place) == 0, (k, when, times)
    verify(baseline, before, killable.world(place), place)
    return code


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, FOR_GOOD], ids=["once", "for good"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_failing_disk_loses_nothing(killable, baseline, statements, when, times, part):
    k = max(1, round((part + 0.5) / FAST_POINTS * statements))
    code = fail_and_resume(killable, baseline, k, when, times, "disk I/O error")
    if times == FOR_GOOD and code != STOPPED:
        # How many statements a run takes depends on how its records fall into batches.
        done = killable.folder / f"io-{k}-{when}-{times}" / "samples.statements"
        assert int(done.read_text()) < k


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_full_disk_stops_the_run_and_the_same_command_goes_on(
    killable, baseline, statements, when
):
    k = statements // 2
    assert fail_and_resume(killable, baseline, k, when, FOR_GOOD, DISK_FULL) == STOPPED


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, FOR_GOOD], ids=["once", "for good"])
def test_any_statement_that_fails_loses_nothing(tmp_path, when, times):
    # Few trajectories, and every statement that they take.
    with KillableRun(
        tmp_path, names=("read0", "pay0", "build0"), samples=1, concurrency=2
    ) as small:
        baseline = undisturbed(small)
        statements = int((tmp_path / "undisturbed" / "samples.statements").read_text())
        for k in range(1, statements + 1):
            fail_and_resume(small, baseline, k, when, times, "disk I/O error")
    print(f"each of {statements} statements failed {when} it ran")
