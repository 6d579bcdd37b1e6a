"""A run grows with its data set: what it has is not generated again."""

import pytest

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
    result.stdout.fnmatch_lines(["test_it.test_it goes on with 2 rows more; it had 2"])
    assert project.engine.stats().requests == 4, "the first two were there"
    assert list(project.runs()) == ["test_it.test_it"]
    row = project.only()
    expected = {"pointwise": 1.5, "groupwise": 1.5, "all": 4.0}[mode]
    assert (row["rows"], row["scored"], row["agg_score"]) == (4, 4, expected)
    project.run().stdout.fnmatch_lines(["test_it.test_it was finished already*"])


def test_fewer_rows_leave_the_run_that_has_more_as_it_is(project: EvaluationProject) -> None:
    written(project, "all")
    project.run().assert_outcomes(passed=1)
    project.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 2.0
    assert project.only()["run"] == "test_it.test_it-2"
    project.run().assert_outcomes(passed=1)
    assert (project.only()["run"], project.only()["agg_score"]) == ("test_it.test_it", 4.0)
    assert project.engine.stats().requests == 6


def test_more_rows_go_on_with_the_run_that_has_the_most(project: EvaluationProject) -> None:
    """And not with the newest, which was a look at a few of them."""
    written(project, "pointwise")
    project.run("--ep-max-rows", 3).assert_outcomes(passed=1)
    project.run("--ep-max-rows", 1).assert_outcomes(passed=1)
    assert project.engine.stats().requests == 4
    project.run().assert_outcomes(passed=1)
    assert project.only()["run"] == "test_it.test_it"
    assert project.engine.stats().requests == 5


def test_a_row_that_changed_begins_another_run(project: EvaluationProject) -> None:
    written(project, "pointwise")
    project.run("--ep-max-rows", 2).assert_outcomes(passed=1)
    file = project.folder / "test_it.py"
    file.write_text(file.read_text().replace("What is {n}?", "What was {n}?"))
    project.run().assert_outcomes(passed=1)
    assert list(project.runs()) == ["test_it.test_it", "test_it.test_it-2"]
    assert project.engine.stats().requests == 6


def test_a_row_that_failed_stays_failed_when_others_come(project: EvaluationProject) -> None:
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
    assert project.engine.stats().requests == requests + 2
    assert (project.only()["scored"], project.only()["failed"]) == (3, 1)
