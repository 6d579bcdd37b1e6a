"""What a run of the same test has generated is not generated again."""

import pytest

from support.evaluation.course import Course

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


def written(course: Course, mode: str) -> None:
    argument, returned = MODES[mode]
    course.write(ANY.format(mode=mode, argument=argument, returned=returned))


@pytest.mark.parametrize("mode", MODES)
def test_all_rows_after_a_few_generate_only_the_rest(course: Course, mode: str) -> None:
    written(course, mode)
    course.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    assert course.engine.stats().requests == 2
    result = course.run("--ep-max-rows", "all")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.test_it-2: 2 rollouts reused from test_it.test_it"])
    assert course.engine.stats().requests == 4, "the first two were there"
    assert list(course.runs()) == ["test_it.test_it", "test_it.test_it-2"]
    told = course.only()
    expected = {"pointwise": 1.5, "groupwise": 1.5, "all": 4.0}[mode]
    assert (told["rows"], told["scored"], told["agg_score"]) == (4, 4, expected)
    course.run().stdout.fnmatch_lines(["test_it.test_it-2 was finished already*"])


def test_fewer_rows_generate_nothing_and_leave_the_run_that_has_more_as_it_is(
    course: Course,
) -> None:
    written(course, "all")
    course.run().assert_outcomes(passed=1)
    course.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    assert course.only()["agg_score"] == 2.0
    assert course.only()["run"] == "test_it.test_it-2"
    course.run().assert_outcomes(passed=1)
    assert (course.only()["run"], course.only()["agg_score"]) == ("test_it.test_it", 4.0)
    assert course.engine.stats().requests == 4


SETTINGS = """
@evaluation_test(dataset=ROWS, completion_params={params})
def test_it(row):
    return float(row.ground_truth)
"""


def test_one_more_setting_generates_its_own_rows_only(course: Course) -> None:
    course.write(SETTINGS.format(params=[{"temperature": 0.5}]))
    course.run().assert_outcomes(passed=1)
    assert course.engine.stats().requests == 4
    course.write(SETTINGS.format(params=[{"temperature": 0.5}, {"temperature": 1.0}]))
    course.run().assert_outcomes(passed=2)
    assert course.engine.stats().requests == 8, "those of the first setting were there"


def test_corrected_ground_truths_generate_nothing(course: Course) -> None:
    written(course, "pointwise")
    course.run().assert_outcomes(passed=1)
    file = course.folder / "test_it.py"
    assert '"ground_truth": n' in file.read_text()
    file.write_text(file.read_text().replace('"ground_truth": n', '"ground_truth": n + 1'))
    course.run().assert_outcomes(passed=1)
    assert course.engine.stats().requests == 4
    assert course.only()["agg_score"] == 2.5, "all are judged by what is right now"
    course.run("--holdfast-new").assert_outcomes(passed=1)
    assert course.engine.stats().requests == 8


def test_a_row_that_changed_begins_another_run(course: Course) -> None:
    written(course, "pointwise")
    course.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    file = course.folder / "test_it.py"
    file.write_text(file.read_text().replace("What is {n}?", "What was {n}?"))
    course.run().assert_outcomes(passed=1)
    assert list(course.runs()) == ["test_it.test_it", "test_it.test_it-2"]
    assert course.engine.stats().requests == 6


def test_a_row_that_failed_is_tried_again_when_others_come(course: Course) -> None:
    course.write(
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
    course.run("--ep-max-rows", 2).assert_outcomes(failed=1)
    requests = course.engine.stats().requests
    course.run().assert_outcomes(failed=1)
    assert course.engine.stats().requests == requests + 3
    assert (course.only()["scored"], course.only()["failed"]) == (3, 1)
