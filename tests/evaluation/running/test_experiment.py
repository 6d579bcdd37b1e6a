"""One evaluation as a pytest test: rows, scores, modes, settings, and what may be returned."""

import pytest

from support.evaluation.evaluation_project import EvaluationProject


def test_rows_are_rolled_out_and_judged_and_the_score_is_told(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, passed_threshold=0.5)
        def test_numbers(row: EvaluationRow) -> EvaluationRow:
            assert row.messages[-1].role == "assistant"
            assert row.input_metadata.completion_params["model"] == "fake"
            score = float(row.ground_truth != 0)
            row.evaluation_result = EvaluateResult(
                score=score,
                reason="it is what it is",
                metrics={"size": MetricResult(score=2.0, reason="counted")},
            )
            return row
        """
    )
    result = project.run()
    result.assert_outcomes(passed=1)
    row = project.only()
    assert row["agg_score"] == 0.75
    assert row["passed"] is True
    assert (row["rows"], row["scored"], row["failed"]) == (4, 4, 0)
    assert row["metrics_agg"]["size"]["mean"] == 2.0
    result.stdout.fnmatch_lines(["*evaluations*", "*test_it.test_numbers: 0.7500*PASSED*"])
    scored = project.histories("test_it.test_numbers")["r0/0"].scored
    assert scored is not None
    assert scored.details["reason"] == "it is what it is"
    assert project.engine.stats().requests == 4


def test_a_missed_threshold_fails_with_what_there_is_to_know(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, passed_threshold={"success": 0.8, "standard_error": 0.5})
        def test_numbers(row):
            return row.ground_truth > 1
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*score 0.5 is below the threshold of 0.8* (test_it.test_numbers)",
            "*4 of 4 rows scored*",
            "*holdfast show test_it.test_numbers*",
        ]
    )
    assert "experiment.py" not in result.stdout.str()


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        ("0.25", 0.25),
        ("True", 1.0),
        ("Score(0.5, metrics={'a': 1})", 0.5),
        ("EvaluateResult(score=0.75)", 0.75),
        ("{'score': 0.5, 'metrics': {'a': 2}, 'reason': 'because'}", 0.5),
    ],
)
def test_a_score_may_be_returned_in_many_ways(
    project: EvaluationProject, returned: str, score: float
) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return {returned}
        """
    )
    project.run().assert_outcomes(passed=1)
    assert project.only()["agg_score"] == score


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("'good'", "; return a row with its evaluation_result"),
        ("row", "returned a row without its evaluation_result"),
        ("{'reason': 'no score'}", "score"),
        ("float('nan')", "nan, which is not a reward"),
        ("'1.0'", "; return a row"),
    ],
)
def test_what_is_no_score_fails_its_rows(
    project: EvaluationProject, returned: str, message: str
) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS[:1])
        def test_it(row):
            return {returned}
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "no row was scored" in result.stdout.str()
    assert message in result.stdout.str()


def test_an_invalid_score_is_in_no_mean_and_is_kept(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return EvaluateResult(score=9.0, is_score_valid=row.ground_truth != 1, reason="so")
        """
    )
    project.run().assert_outcomes(passed=1)
    row = project.only()
    assert (row["agg_score"], row["scored"], row["unscored"], row["failed"]) == (9.0, 3, 1, 0)
    scored = project.histories("test_it.test_it")["r1/0"].scored
    assert scored is not None
    assert scored.reward is None
    assert scored.details == {"score": 9.0, "is_score_valid": False, "reason": "so"}


def test_scores_that_are_all_invalid_are_no_score(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return EvaluateResult(score=1.0, is_score_valid=False)
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no row was scored*"])


def test_async_functions_fixtures_classes_and_parameters(project: EvaluationProject) -> None:
    project.write(
        """
        @pytest.fixture
        def bonus():
            return 0.25

        class TestAll:
            limit = 2

            @pytest.mark.parametrize("above", [0, 1])
            @evaluation_test(dataset=ROWS, completion_params=[{"temperature": 0.5}, {"top_p": 0.5}])
            @pytest.mark.parametrize("word", ["a", "ü"])
            async def test_it(self, row, bonus, above, word):
                assert word in ("a", "ü")
                return float(above < row.ground_truth <= self.limit) + bonus
        """
    )
    result = project.run("-k", "not nothing")
    result.assert_outcomes(passed=8)
    scores = {outcome["test"]: outcome["runs"][0]["agg_score"] for outcome in project.outcomes()}
    assert sorted(scores.values()) == [0.5] * 4 + [0.75] * 4
    assert len(project.runs()) == 8
    assert any("temperature=0.5" in name for name in project.runs())
    result = project.run("-k", "temperature and a-1 or nothing")
    assert result.parseoutcomes()["passed"] == 1


def test_a_sync_function_that_returns_a_coroutine_is_awaited(project: EvaluationProject) -> None:
    project.write(
        """
        async def later(row):
            return 1.0

        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return later(row)
        """
    )
    project.run().assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0


def test_completion_params_that_pytest_parametrizes_are_settings(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @pytest.mark.parametrize(
            "completion_params", [{"temperature": 0.1}, {"temperature": 0.9}], ids=["cold", "hot"]
        )
        @evaluation_test(input_messages=[[[Message(role="user", content="hi")]]])
        def test_it(row: EvaluationRow) -> EvaluationRow:
            row.evaluation_result = EvaluateResult(
                score=row.input_metadata.completion_params["temperature"]
            )
            return row
        """
    )
    project.run().assert_outcomes(passed=2)
    scores = {outcome["test"]: outcome["runs"][0]["agg_score"] for outcome in project.outcomes()}
    assert scores == {
        "test_it.py::test_it[cold]": pytest.approx(0.1),
        "test_it.py::test_it[hot]": pytest.approx(0.9),
    }


def test_keyword_arguments_make_variants(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, evaluation_test_kwargs=[{"bonus": 0}, {"bonus": 1}])
        def test_it(row, bonus):
            return bonus
        """
    )
    project.run().assert_outcomes(passed=2)
    assert [outcome["runs"][0]["agg_score"] for outcome in project.outcomes()] == [0.0, 1.0]


def test_a_group_is_what_became_of_one_row(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, mode="groupwise", samples=3)
        def test_it(rows):
            assert len({row.input_metadata.row_id for row in rows}) == 1
            return [float(place) for place, row in enumerate(rows)]
        """
    )
    project.run().assert_outcomes(passed=1)
    row = project.only()
    assert (row["agg_score"], row["rows"], row["samples"]) == (1.0, 12, 3)
    assert project.engine.stats().requests == 12


def test_settings_are_members_of_one_group_at_no_more_cost(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(
            dataset=ROWS,
            mode="groupwise",
            completion_params=[{"temperature": 0.1}, {"temperature": 0.9}],
        )
        async def test_it(rows):
            heat = [row.input_metadata.completion_params["temperature"] for row in rows]
            assert heat == [0.1, 0.9], heat
            for row in rows:
                row.evaluation_result = EvaluateResult(
                    score=row.input_metadata.completion_params["temperature"]
                )
            return rows
        """
    )
    result = project.run()
    result.assert_outcomes(passed=1)
    (outcome,) = project.outcomes()
    assert [run["agg_score"] for run in outcome["runs"]] == [
        pytest.approx(0.1),
        pytest.approx(0.9),
    ]
    assert sorted(project.runs()) == [
        "test_it.test_it[temperature=0.1]",
        "test_it.test_it[temperature=0.9]",
    ]
    assert project.engine.stats().requests == 8


def test_all_sees_the_whole_data_set_in_order(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, mode="all", num_runs=2, passed_threshold=0.0)
        def test_it(rows):
            assert [row.ground_truth for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
            return [len(rows)] * len(rows)
        """
    )
    project.run().assert_outcomes(passed=1)
    row = project.only()
    assert (row["agg_score"], row["num_runs"], row["run_scores"]) == (8.0, 2, [8.0, 8.0])


def test_runs_are_aggregated_as_asked(project: EvaluationProject) -> None:
    for method, score in (("max", 1.0), ("min", 0.0), ("mean", 0.5)):
        project.write(
            f"""
            @evaluation_test(dataset=ROWS, num_runs=2, aggregation_method="{method}")
            def test_{method}(row):
                return row.execution_metadata.run_id.endswith("/1")
            """,
            f"test_{method}.py",
        )
        project.run(f"test_{method}.py").assert_outcomes(passed=1)
        assert project.only()["agg_score"] == score
