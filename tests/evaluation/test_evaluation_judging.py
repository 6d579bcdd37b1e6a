"""What the judging function may do beside returning a score: speak to pytest, be awaited."""

import asyncio

import pytest
from course import Course

from holdfast.evaluation import EvaluateResult, EvaluationRow, evaluation_test
from holdfast.records.trajectory import Status

ROWS = [{"prompt": "What is 1?"}]


@pytest.mark.parametrize("mode", ["pointwise", "groupwise", "all"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_skip_in_the_function_skips_the_test_and_loses_no_rollout(
    course: Course, mode: str, kind: str
) -> None:
    argument = "row" if mode == "pointwise" else "rows"
    source = f"""
    import os

    @evaluation_test(dataset=ROWS, mode="{mode}")
    {kind} test_it({argument}):
        if "JUDGES_KEY" not in os.environ:
            pytest.skip("the judge has no key")
        return {"1.0" if mode == "pointwise" else "[1.0 for row in rows]"}
    """
    course.write(source)
    result = course.run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_it.py*the judge has no key"])
    statuses = {one.status for one in course.histories("test_it.test_it").values()}
    assert Status.FAILED not in statuses
    asked = course.engine.stats().requests
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUDGES_KEY", "secret")
        course.run().assert_outcomes(passed=1)
    assert course.engine.stats().requests == 4, f"{asked} replies were kept"


def test_an_expected_failure_is_one_and_a_failed_row_fails_alone(course: Course) -> None:
    course.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_expected(row):
            pytest.xfail("not yet")

        @evaluation_test(dataset=ROWS)
        def test_row(row):
            if row.ground_truth == 1:
                pytest.fail("one is wrong")
            return 1.0
        """
    )
    result = course.run()
    result.assert_outcomes(xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*1 of 4 rows failed for good (1 code)*", "*one is wrong*"])


def test_without_pytest_a_skip_is_what_the_function_raised(course: Course) -> None:
    @evaluation_test(dataset=ROWS)
    def judge(row: EvaluationRow) -> float:
        pytest.skip("not today")

    place = str(course.folder / "journal.db")
    with pytest.raises(pytest.skip.Exception, match="not today"):
        judge.evaluate(policy=course.engine.url, journal=place)  # type: ignore[attr-defined]


def test_a_synchronous_function_can_be_awaited_as_eval_protocols_are() -> None:
    @evaluation_test(dataset=ROWS)
    def point(row: EvaluationRow) -> EvaluationRow:
        row.evaluation_result = EvaluateResult(score=0.5)
        return row

    @evaluation_test(dataset=ROWS, mode="all")
    def together(rows: list[EvaluationRow]) -> list[EvaluationRow]:
        return rows

    @evaluation_test(dataset=ROWS)
    async def later(row: EvaluationRow) -> EvaluationRow:
        return row

    row = EvaluationRow()

    async def awaited() -> None:
        for found in (await point(row), await point(row=row), await later(row)):
            assert found is row
        assert await together([row, row]) == [row, row]  # type: ignore[misc]

    asyncio.run(awaited())
    assert point(row) is row
    assert together([row]) == [row]
