"""What the judging function may do beside returning a score: speak to pytest, be awaited."""

import asyncio

import pytest

from holdfast.evaluation import EvaluateResult, EvaluationRow, evaluation_test
from holdfast.records.trajectory import Status
from support.evaluation.course import Course

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


def test_what_a_scorer_does_to_its_row_is_not_seen_by_the_next(course: Course) -> None:
    course.write(
        """
        @evaluation_test(
            dataset=ROWS, samples=2, completion_params={"stop": ["never said"]},
            passed_threshold=0.5, max_concurrent_evaluations=1,
        )
        def test_it(row):
            stop = row.input_metadata.completion_params["stop"]
            threshold = row.eval_metadata.passed_threshold
            untouched = stop == ["never said"] and threshold.success == 0.5
            stop.append("spoilt")
            threshold.success = 9
            return float(untouched)
        """
    )
    course.run().assert_outcomes(passed=1)
    assert course.only()["agg_score"] == 1.0


def test_a_metric_that_is_no_number_fails_its_row(course: Course) -> None:
    course.write(
        """
        @evaluation_test(dataset=ROWS, scorer_tries=1)
        def test_it(row):
            metric = MetricResult(score=float("nan" if row.ground_truth == 1 else 1), reason="")
            return EvaluateResult(score=1.0, metrics={"length": metric})
        """
    )
    result = course.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*returned nan as its metric 'length'*"])
    assert course.only()["failed"] == 1
    assert course.only()["metrics_agg"]["length"]["mean"] == 1.0
    assert "NaN" not in (course.folder / "summary.json").read_text()


LATE = """
from pathlib import Path

async def turn(t: Rollout):
    t.add(*t.task.messages)
    await t.generate()
    if t.task.id == "r1" and Path("broken").exists():
        if {settings} == 1 or Path("tried").exists():
            raise RuntimeError("it is broken")
        Path("tried").touch()

@evaluation_test(dataset=ROWS, rollout_processor=turn, {mode})
def test_it(rows):
    with open("calls", "a") as file:
        file.write(f"{{rows[0].input_metadata.row_id}} {{len(rows)}}\\n")
    return [1 / len(rows)] * len(rows)
"""

ALL = 'mode="all"'

SETTINGS = 'mode="groupwise", completion_params=[{"temperature": 0.1}, {"temperature": 0.2}]'


def calls(course: Course) -> list[str]:
    return sorted((course.folder / "calls").read_text().splitlines())


def retried(course: Course) -> None:
    """The evaluation with a row that fails, and again when that is mended."""
    mending = course.folder / "broken"
    mending.touch()
    course.run("--holdfast-max-retry", "0").assert_outcomes(failed=1)
    mending.unlink()
    course.run("--holdfast-retry-failed").assert_outcomes(passed=1)


def test_a_row_that_is_there_at_last_is_judged_with_all_others(course: Course) -> None:
    course.write(LATE.format(settings=1, mode=ALL))
    retried(course)
    assert calls(course) == ["r0 3", "r0 4"]
    histories = course.histories("test_it.test_it").values()
    assert [history.reward for history in histories] == [0.25] * 4


def test_and_so_are_those_of_other_settings(course: Course) -> None:
    course.write(LATE.format(settings=2, mode=SETTINGS))
    retried(course)
    for temperature in (0.1, 0.2):
        histories = course.histories(f"test_it.test_it[temperature={temperature}]").values()
        assert [history.reward for history in histories] == [0.5] * 4
    assert course.engine.stats().requests == 8, "nothing is rolled out again"
