"""The rows that a session writes say which evaluation they were part of, and what came of it."""

import json
from typing import Any

from support.evaluation.evaluation_project import EvaluationProject

SOURCE = '''
@evaluation_test(dataset=ROWS, num_runs=2, passed_threshold=0.5{extra})
def test_it(row):
    """Counts."""
    if row.ground_truth == 3:
        return EvaluateResult(score=0.0, is_score_valid=False)
    return EvaluateResult(score=float(row.ground_truth))
'''


def written(project: EvaluationProject, *arguments: object) -> list[dict[str, Any]]:
    project.run(*arguments, "--holdfast-output-dir", "out")
    lines = (project.folder / "out" / "test_it.test_it.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_each_row_has_the_evaluation_and_its_score(project: EvaluationProject) -> None:
    project.write(SOURCE.format(extra=""))
    rows = written(project)
    assert len(rows) == 8
    for row in rows:
        metadata = row["eval_metadata"]
        assert (metadata["name"], metadata["description"]) == ("test_it", "Counts.")
        assert (metadata["num_runs"], metadata["aggregation_method"]) == (2, "mean")
        assert (metadata["passed"], metadata["passed_threshold"]["success"]) == (True, 0.5)
        result = row["evaluation_result"]
        assert (result["agg_score"], result["standard_error"]) == (1.0, 0.0)
        is_valid = row["ground_truth"] != 3
        assert metadata["status"]["code"] == (100 if is_valid else 102)


def test_the_thresholds_of_the_session_are_those_that_are_written(
    project: EvaluationProject,
) -> None:
    project.write(SOURCE.format(extra=""))
    rows = written(project, "--holdfast-success-threshold", 2, "--holdfast-se-threshold", 3)
    metadata = rows[0]["eval_metadata"]
    assert not metadata["passed"]
    bounds = metadata["passed_threshold"]
    assert (bounds["success"], bounds["standard_error"]) == (2.0, 3.0)


def test_a_row_that_failed_has_its_error_as_the_status_of_the_evaluation(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS[:2], rollout_processor=NoOpRolloutProcessor())
        def test_it(row):
            return 1 / row.ground_truth
        """
    )
    failed, judged = written(project)
    assert failed["eval_metadata"]["status"]["code"] == 13
    assert "division by zero" in failed["eval_metadata"]["status"]["message"]
    assert judged["eval_metadata"]["status"]["code"] == 100
    assert not failed["eval_metadata"]["passed"]


def test_a_result_that_states_its_own_aggregate_keeps_it(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS[:1])
        def test_it(row):
            return EvaluateResult(score=1.0, agg_score=0.25)
        """
    )
    (row,) = written(project)
    assert row["evaluation_result"]["agg_score"] == 0.25


def test_a_metric_is_written_with_all_of_its_fields(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS[:1])
        def test_it(row):
            metrics = {"length": MetricResult(score=0.5, reason="short")}
            return EvaluateResult(score=1.0, metrics=metrics)
        """
    )
    (row,) = written(project)
    assert row["evaluation_result"]["metrics"] == {
        "length": {"is_score_valid": True, "score": 0.5, "reason": "short", "data": {}}
    }
