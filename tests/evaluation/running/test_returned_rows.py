"""A returned row is scored as the row that it is, wherever it stands in the list."""

import re
from typing import Any

import pytest

from holdfast.engine.scoring.scorer import NotAScore
from holdfast.evaluation import EvaluateResult, EvaluationRow, ExecutionMetadata, InputMetadata
from holdfast.evaluation.running.scorer import JudgedRows
from support.evaluation.evaluation_project import EvaluationProject


def row(task: str, sample: int = 0) -> EvaluationRow:
    return EvaluationRow(
        input_metadata=InputMetadata(row_id=task),
        execution_metadata=ExecutionMetadata(rollout_id=f"run/{task}/{sample}"),
        evaluation_result=EvaluateResult(score=0.5),
    )


def made_by_the_function(task: str) -> EvaluationRow:
    return EvaluationRow(
        input_metadata=InputMetadata(row_id=task), evaluation_result=EvaluateResult(score=1.0)
    )


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    "returned",
    ["rows[::-1]", "[row.model_copy(deep=True) for row in reversed(rows)]"],
    ids=["rows", "copies"],
)
def test_rows_in_another_order_keep_their_scores(
    project: EvaluationProject, kind: str, returned: str
) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS, mode="all")
        {kind} test_it(rows):
            for row in rows:
                row.evaluation_result = EvaluateResult(score=row.ground_truth / 10)
            return {returned}
        """
    )
    project.run().assert_outcomes(passed=1)
    rewards = {name: item.reward for name, item in project.histories("test_it.test_it").items()}
    assert rewards == {"r0/0": 0.0, "r1/0": 0.1, "r2/0": 0.2, "r3/0": 0.3}


@pytest.mark.parametrize(
    "result",
    [
        '{"row_id": row.input_metadata.row_id, "score": row.ground_truth / 10}',
        '{"id": row.input_metadata.row_id, "score": row.ground_truth / 10}',
        '{"rollout_id": row.execution_metadata.rollout_id, "score": row.ground_truth / 10}',
        "EvaluateResult(score=row.ground_truth / 10, row_id=row.input_metadata.row_id)",
    ],
)
def test_results_that_name_their_rows_go_to_these(project: EvaluationProject, result: str) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS, mode="all")
        def test_it(rows):
            return [{result} for row in reversed(rows)]
        """
    )
    project.run().assert_outcomes(passed=1)
    rewards = {name: item.reward for name, item in project.histories("test_it.test_it").items()}
    assert rewards == {"r0/0": 0.0, "r1/0": 0.1, "r2/0": 0.2, "r3/0": 0.3}


def test_a_comparison_of_two_settings_is_not_inverted_by_the_order_of_its_rows(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @evaluation_test(
            dataset=ROWS,
            mode="groupwise",
            completion_params=[{"temperature": 0.25}, {"temperature": 1.0}],
        )
        def test_it(rows):
            for row in rows:
                temperature = row.input_metadata.completion_params["temperature"]
                row.evaluation_result = EvaluateResult(score=temperature)
            return sorted(rows, key=lambda row: -row.evaluation_result.score)
        """
    )
    project.run().assert_outcomes(passed=1)
    (outcome,) = project.outcomes()
    assert [run["agg_score"] for run in outcome["runs"]] == [0.25, 1.0]


def test_a_logger_gets_each_row_with_its_own_result(project: EvaluationProject) -> None:
    project.write(
        """
        class Log:
            def log(self, row):
                with open("log.txt", "a") as file:
                    file.write(f"{row.input_metadata.row_id} {row.evaluation_result.score}\\n")

            def read(self, rollout_id=None):
                return []

        @evaluation_test(dataset=ROWS, mode="all", logger=Log())
        def test_it(rows):
            for row in rows:
                row.evaluation_result = EvaluateResult(score=row.ground_truth / 10)
            return rows[::-1]
        """
    )
    project.run().assert_outcomes(passed=1)
    logged = (project.folder / "log.txt").read_text().splitlines()
    assert sorted(logged) == ["r0 0.0", "r1 0.1", "r2 0.2", "r3 0.3"]


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("rows[:3]", "test_it did not return the row test_it.test_it/r3/0"),
        ("rows + rows[:1]", "test_it returned the row test_it.test_it/r0/0 twice"),
        (
            "rows[:3] + [EvaluationRow(input_metadata=InputMetadata(row_id='r9'))]",
            "test_it returned the row r9, which it was not given",
        ),
        ("rows[:3] + [1.0]", "test_it returned 1.0 in a list of rows"),
    ],
)
def test_a_missing_doubled_or_foreign_row_is_an_error_that_names_it(
    project: EvaluationProject, returned: str, error: str
) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS, mode="all")
        def test_it(rows):
            for row in rows:
                row.evaluation_result = EvaluateResult(score=1.0)
            return {returned}
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert error in result.stdout.str()


def test_a_pointwise_function_may_not_return_the_row_of_another_rollout(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        SEEN = []

        @evaluation_test(dataset=ROWS[:2], max_concurrent_evaluations=1)
        def test_it(row):
            row.evaluation_result = EvaluateResult(score=1.0)
            SEEN.append(row)
            return SEEN[0]
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert re.search(r"returned the row test_it\.test_it/r./0 for the row test_it\.test_it/r", text)


@pytest.mark.parametrize("results", [[0.1, 0.2], [{"score": 0.1}, None]])
def test_results_that_are_no_rows_go_by_position(results: list[Any]) -> None:
    assert JudgedRows([row("a"), row("b")]).in_order(results, "test_it") == results


@pytest.mark.parametrize(
    "sort",
    ["rows.reverse()", "rows.sort(key=lambda row: -row.ground_truth)", "rows[:] = rows[::-1]"],
)
@pytest.mark.parametrize("score", ["SCORE", "EvaluateResult(score=SCORE)"])
def test_results_of_a_function_that_sorts_its_rows_belong_to_the_sorted_rows(
    project: EvaluationProject, sort: str, score: str
) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS, mode="all")
        def test_it(rows):
            {sort}
            return [{score.replace("SCORE", "row.ground_truth / 10")} for row in rows]
        """
    )
    project.run().assert_outcomes(passed=1)
    rewards = {name: item.reward for name, item in project.histories("test_it.test_it").items()}
    assert rewards == {"r0/0": 0.0, "r1/0": 0.1, "r2/0": 0.2, "r3/0": 0.3}


@pytest.mark.parametrize("change", ["rows.pop()", "rows[0] = rows[1]", "rows.append(rows[0])"])
def test_results_of_a_function_that_replaces_its_rows_are_refused(
    project: EvaluationProject, change: str
) -> None:
    project.write(
        f"""
        @evaluation_test(dataset=ROWS, mode="all")
        def test_it(rows):
            {change}
            return [0.0, 0.1, 0.2, 0.3]
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "put other items into the list that it was given" in result.stdout.str()


def test_a_row_that_the_function_made_is_matched_by_its_row_id() -> None:
    first, second = made_by_the_function("a"), made_by_the_function("b")
    assert JudgedRows([row("a"), row("b")]).in_order([second, first], "test_it") == [first, second]


def test_a_row_that_the_function_made_is_refused_where_several_have_its_row_id() -> None:
    judged = JudgedRows([row("a", 0), row("a", 1)])
    with pytest.raises(NotAScore, match="2 rows have its row_id 'a'"):
        judged.in_order([made_by_the_function("a"), row("a", 1)], "test_it")


def test_a_row_of_an_earlier_rollout_does_not_pass_for_one_with_its_row_id() -> None:
    stale = row("a")
    stale.execution_metadata.rollout_id = "earlier/a/0"
    with pytest.raises(NotAScore, match="returned the row earlier/a/0, which it was not given"):
        JudgedRows([row("a"), row("b")]).in_order([stale, row("b")], "test_it")
