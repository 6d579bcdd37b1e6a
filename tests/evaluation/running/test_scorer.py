"""What the judging function may do beside returning a score: speak to pytest, be awaited."""

import pytest

from holdfast.engine.scoring.scorer import NotAScore, Score, checked
from holdfast.evaluation import EvaluateResult, EvaluationRow, evaluation_test
from holdfast.evaluation.running.scorer import score_of
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import Status
from support.evaluation.evaluation_project import EvaluationProject

ROWS = [{"prompt": "What is 1?"}]


@pytest.mark.parametrize("mode", ["pointwise", "groupwise", "all"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_skip_in_the_function_skips_the_test_and_loses_no_rollout(
    project: EvaluationProject, mode: str, kind: str
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
    project.write(source)
    result = project.run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_it.py*the judge has no key"])
    statuses = {item.status for item in project.histories("test_it.test_it").values()}
    assert Status.FAILED not in statuses
    requests = project.engine.stats().requests
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUDGES_KEY", "secret")
        project.run().assert_outcomes(passed=1)
    assert project.engine.stats().requests == 4, f"{requests} replies were kept"


def test_an_expected_failure_is_one_and_a_failed_row_fails_alone(
    project: EvaluationProject,
) -> None:
    project.write(
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
    result = project.run()
    result.assert_outcomes(xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*1 of 4 rows failed for good (1 code)*", "*one is wrong*"])


def test_without_pytest_a_skip_is_what_the_function_raised(project: EvaluationProject) -> None:
    @evaluation_test(dataset=ROWS)
    def judge(row: EvaluationRow) -> float:
        pytest.skip("not today")

    place = str(project.folder / "journal.db")
    with pytest.raises(pytest.skip.Exception, match="not today"):
        judge.evaluate(policy=project.engine.url, journal=place)  # type: ignore[attr-defined]


async def test_a_synchronous_function_can_be_awaited_as_eval_protocols_are() -> None:
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
    for result in (await point(row), await point(row=row), await later(row)):
        assert result is row
    assert await together([row, row]) == [row, row]  # type: ignore[misc]
    assert point(row) is row
    assert together([row]) == [row]


def test_what_a_scorer_does_to_its_row_is_not_seen_by_the_next(project: EvaluationProject) -> None:
    project.write(
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
    project.run().assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0


def test_a_metric_that_is_no_number_fails_its_row(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, scorer_tries=1)
        def test_it(row):
            metric = MetricResult(score=float("nan" if row.ground_truth == 1 else 1), reason="")
            return EvaluateResult(score=1.0, metrics={"length": metric})
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*returned nan as its metric 'length'*"])
    assert project.only()["failed"] == 1
    assert project.only()["metrics_agg"]["length"]["mean"] == 1.0
    assert "NaN" not in (project.folder / "summary.json").read_text()


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


def calls(project: EvaluationProject) -> list[str]:
    return sorted((project.folder / "calls").read_text().splitlines())


def retried(project: EvaluationProject) -> None:
    """The evaluation with a row that fails, and again when that is mended."""
    mending = project.folder / "broken"
    mending.touch()
    project.run("--holdfast-max-retry", "0").assert_outcomes(failed=1)
    mending.unlink()
    project.run("--holdfast-retry-failed").assert_outcomes(passed=1)


def test_a_row_that_is_there_at_last_is_judged_with_all_others(project: EvaluationProject) -> None:
    project.write(LATE.format(settings=1, mode=ALL))
    retried(project)
    assert calls(project) == ["r0 3", "r0 4"]
    histories = project.histories("test_it.test_it").values()
    assert [history.reward for history in histories] == [0.25] * 4


def test_and_so_are_those_of_other_settings(project: EvaluationProject) -> None:
    project.write(LATE.format(settings=2, mode=SETTINGS))
    retried(project)
    for temperature in (0.1, 0.2):
        histories = project.histories(f"test_it.test_it[temperature={temperature}]").values()
        assert [history.reward for history in histories] == [0.5] * 4
    assert project.engine.stats().requests == 8, "nothing is rolled out again"


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        (True, 1.0),
        (3, 3.0),
        (None, None),
        ({"score": 0.5}, 0.5),
        ({"reward": 0.5}, 0.5),
        ({"score": None}, None),
        ({"score": 1, "metrics": {"a": 1}}, 1.0),
        (Score(0.25), 0.25),
    ],
)
def test_what_a_scorer_of_a_run_may_return_an_evaluation_may_return(
    returned: object, reward: float | None
) -> None:
    assert score_of(returned, "test_it").reward == reward
    assert checked(returned, "test_it").reward == reward


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"score": "1"}, "returned '1' as its score, which is not a number; return a"),
        ({"reward": "0.5"}, "returned '0.5' as its score, which is not a number; return a"),
        ({"score": [1]}, r"returned \[1\] as its score"),
        ({"score": 1, "reward": 1}, "returned a dict with a 'score' and a 'reward'; return one"),
        ({"score": 1, "metrics": {"a": "1"}}, "returned '1' as its metric 'a'"),
        (
            {"score": 1, "metrics": {"a": {"score": "1", "reason": ""}}},
            "returned .* as its metric 'a'",
        ),
    ],
)
def test_what_a_scorer_of_a_run_may_not_return_an_evaluation_may_not_either(
    returned: object, message: str
) -> None:
    for read in (score_of, checked):
        with pytest.raises(NotAScore, match=f"^test_it {message}"):
            read(returned, "test_it")


def test_a_dict_without_a_score_and_a_generator_are_refused() -> None:
    with pytest.raises(TypeError, match="a dict without a 'score'; it has accuracy"):
        score_of({"accuracy": 1}, "test_it")
    with pytest.raises(UsageError, match="test_it yields; an evaluation returns its result"):

        @evaluation_test(dataset=ROWS)
        def test_it(row):
            yield 1.0


NONSENSE = {
    "pointwise": {
        "return 'ok'": "returned 'ok'; return a row with its evaluation_result, *",
        "return float('nan')": "returned nan, which is not a reward; *",
        "return 10**400": "returned inf, which is not a reward; *",
        "return -(10**400)": "returned -inf, which is not a reward; *",
        "return [10**5000]": "returned a list whose repr fails*; return a row*",
        "row.ground_truth": "has no `return` with a value; return a row*",
        "return row": "returned a row without its evaluation_result; set *",
        "return {'scor': 1}": "returned a dict without a 'score'; it has scor; return a row*",
        "return {'score': 'x'}": "returned 'x' as its score, which is not a number; return a row*",
        "return Score(1.0, {'length': 10**400})": "returned inf as its metric 'length'*",
    },
    "groupwise": {
        "return [1.0]": "returned a list of 1; return a list of 2, *",
        "return [1.0] * 3": "returned a list of 3; return a list of 2, *",
        "len(rows)": "returned None; return a list of 2, *",
    },
    "all": {
        "return [1.0]": "returned a list of 1; return a list of 8, *",
        "return 'abcdefgh'": "returned 'abcdefgh'; return a list of 8, *",
        "return [float('nan')] * 8": "returned nan, which is not a reward; *",
    },
}


@pytest.mark.parametrize("mode", NONSENSE)
def test_nonsense_is_one_line_that_names_the_evaluation(
    project: EvaluationProject, mode: str
) -> None:
    argument = "row" if mode == "pointwise" else "rows"
    samples = 1 if mode == "pointwise" else 2
    for number, body in enumerate(NONSENSE[mode]):
        project.write(
            f"""
            @evaluation_test(dataset=ROWS, mode="{mode}", samples={samples})
            def test_it({argument}):
                {body}
            """,
            f"test_{number}.py",
        )
    result = project.run()
    result.assert_outcomes(failed=len(NONSENSE[mode]))
    rows = 4 * samples
    for number, message in enumerate(NONSENSE[mode].values()):
        line = f"*[[]code, scoring[]] {rows} × NotAScore: test_{number}.py::test_it {message}"
        result.stdout.fnmatch_lines([line, f"  holdfast show test_{number}.test_it *"])
    assert "src/holdfast/" not in result.stdout.str(), "frames of ours"


def test_none_that_is_returned_on_purpose_is_no_mistake(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return None if row.ground_truth == 1 else 1.0
        """
    )
    project.run().assert_outcomes(passed=1)
    assert (project.only()["scored"], project.only()["unscored"]) == (3, 1)
