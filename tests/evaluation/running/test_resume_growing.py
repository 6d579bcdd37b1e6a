"""What a run of the same test has generated is not generated again."""

import os
import signal
import time

import pytest

from holdfast.testing import Fault, FaultKind
from support.evaluation.evaluation_project import EvaluationProject

ANY = """
@evaluation_test(dataset=ROWS, mode="{mode}")
def test_it({argument}):
    return {returned}
"""
MODES = {
    "pointwise": ("row", "float(row.ground_truth)"),
    "groupwise": ("rows", "[float(row.ground_truth) for row in rows]"),
    "all": ("rows", "[float(len(rows)) for row in rows]"),
}


def written(project: EvaluationProject, mode: str) -> None:
    argument, returned = MODES[mode]
    project.write(ANY.format(mode=mode, argument=argument, returned=returned))


@pytest.mark.parametrize("mode", MODES)
def test_all_rows_after_a_few_generate_only_the_rest(project: EvaluationProject, mode: str) -> None:
    written(project, mode)
    project.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    assert project.engine.stats().requests == 2
    result = project.run("--ep-max-rows", "all")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.test_it-2: 2 rollouts reused from test_it.test_it"])
    assert project.engine.stats().requests == 4, "the first two were there"
    assert list(project.runs()) == ["test_it.test_it", "test_it.test_it-2"]
    progress = project.only()
    expected = {"pointwise": 1.5, "groupwise": 1.5, "all": 4.0}[mode]
    assert (progress["rows"], progress["scored"], progress["agg_score"]) == (4, 4, expected)
    project.run().stdout.fnmatch_lines(["test_it.test_it-2 was finished already*"])


def test_rows_that_a_killed_session_reused_are_counted_by_the_next(
    project: EvaluationProject,
) -> None:
    written(project, "pointwise")
    project.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    project.engine.set_faults(Fault(FaultKind.HOLD))
    process = project.apart("--ep-max-rows", "all")
    while project.engine.stats().in_flight < 2:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    project.engine.set_faults()
    project.engine.release()
    result = project.run("--ep-max-rows", "all")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.test_it-2: 2 rollouts reused from test_it.test_it"])


def test_fewer_rows_generate_nothing_and_leave_the_run_that_has_more_as_it_is(
    project: EvaluationProject,
) -> None:
    written(project, "all")
    project.run().assert_outcomes(passed=1)
    project.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 2.0
    assert project.only()["run"] == "test_it.test_it-2"
    project.run().assert_outcomes(passed=1)
    assert (project.only()["run"], project.only()["agg_score"]) == ("test_it.test_it", 4.0)
    assert project.engine.stats().requests == 4


SETTINGS = """
@evaluation_test(dataset=ROWS, completion_params={params})
def test_it(row):
    return float(row.ground_truth)
"""


def test_one_more_setting_generates_its_own_rows_only(project: EvaluationProject) -> None:
    project.write(SETTINGS.format(params=[{"temperature": 0.5}]))
    project.run().assert_outcomes(passed=1)
    assert project.engine.stats().requests == 4
    project.write(SETTINGS.format(params=[{"temperature": 0.5}, {"temperature": 1.0}]))
    project.run().assert_outcomes(passed=2)
    assert project.engine.stats().requests == 8, "those of the first setting were there"


def test_corrected_ground_truths_generate_nothing(project: EvaluationProject) -> None:
    written(project, "pointwise")
    project.run().assert_outcomes(passed=1)
    file = project.folder / "test_it.py"
    assert '"ground_truth": n' in file.read_text()
    file.write_text(file.read_text().replace('"ground_truth": n', '"ground_truth": n + 1'))
    project.run().assert_outcomes(passed=1)
    assert project.engine.stats().requests == 4
    assert project.only()["agg_score"] == 2.5, "all are judged by what is right now"
    project.run("--holdfast-new").assert_outcomes(passed=1)
    assert project.engine.stats().requests == 8


def test_a_row_that_changed_begins_another_run(project: EvaluationProject) -> None:
    written(project, "pointwise")
    project.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    file = project.folder / "test_it.py"
    file.write_text(file.read_text().replace("What is {n}?", "What was {n}?"))
    project.run().assert_outcomes(passed=1)
    assert list(project.runs()) == ["test_it.test_it", "test_it.test_it-2"]
    assert project.engine.stats().requests == 6


def test_a_row_that_failed_is_tried_again_when_others_come(project: EvaluationProject) -> None:
    project.write(
        """
        async def solve(t: Rollout):
            t.add(*t.task.messages)
            await t.generate()
            assert t.task.id != "r0"

        @evaluation_test(dataset=ROWS, rollout_processor=solve)
        def test_it(row):
            return 1.0
        """
    )
    project.run("--ep-max-rows", 2).assert_outcomes(failed=1)
    requests = project.engine.stats().requests
    project.run().assert_outcomes(failed=1)
    assert project.engine.stats().requests == requests + 3
    assert (project.only()["scored"], project.only()["failed"]) == (3, 1)
