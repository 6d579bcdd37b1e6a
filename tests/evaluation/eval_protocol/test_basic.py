"""Where nothing is generated, a row is judged, and written, with all that was recorded in it."""

import json
from typing import Any

from support.evaluation.evaluation_project import EvaluationProject

RECORDED: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "What is 1?"},
        {"role": "assistant", "content": "1", "weight": 0, "logprobs": {"content": []}},
    ],
    "input_metadata": {"row_id": "old", "completion_params": {"model": "older", "top_p": 0.5}},
    "rollout_status": {"code": 4, "message": "too late", "details": [{"reason": "EXTRA_INFO"}]},
    "evaluation_result": {"score": 0.25, "reason": "by hand"},
    "execution_metadata": {
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        "finish_reason": "tool_calls",
        "tool_call_count": 2,
        "rollout_duration_seconds": 7.5,
        "cost_metrics": {"total_cost_dollar": 0.5},
        "raw_output": {"id": "chatcmpl-1"},
        "extra": {
            "prompt_ids": [1, 2, 3],
            "completion_ids": [[4]],
            "inference_logprobs": [[-0.5]],
            "rewards": [0.75],
            "theirs": True,
        },
    },
}
JUDGE = """
import json

@evaluation_test(dataset="rows.jsonl"{processor})
def test_it(row):
    with open("seen.json", "w") as file:
        file.write(row.model_dump_json(exclude_none=True))
    return 1.0
"""


def as_given(row: dict[str, Any]) -> dict[str, Any]:
    """The row without what belongs to this run."""
    ran = {k: v for k, v in row["execution_metadata"].items() if not k.endswith("_id")}
    return {**{name: row[name] for name in RECORDED}, "execution_metadata": ran}


def test_a_row_is_judged_as_it_was_recorded(project: EvaluationProject) -> None:
    (project.folder / "rows.jsonl").write_text(json.dumps(RECORDED) + "\n")
    project.write(JUDGE.format(processor=", rollout_processor=NoOpRolloutProcessor()"))
    project.run("--holdfast-output-dir", "out").assert_outcomes(passed=1)
    seen = json.loads((project.folder / "seen.json").read_text())
    assert seen["input_metadata"].pop("session_data") == {"mode": "pointwise"}
    row, result = as_given(seen), RECORDED["evaluation_result"]
    row["evaluation_result"] = {name: row["evaluation_result"][name] for name in result}
    assert row == RECORDED
    (line,) = (project.folder / "out" / "test_it.test_it.jsonl").read_text().splitlines()
    written = json.loads(line)
    assert written["evaluation_result"]["score"] == 1.0, "the new one"
    assert as_given(written) | {"evaluation_result": RECORDED["evaluation_result"]} == RECORDED


def test_the_flag_judges_the_rows_of_any_evaluation_so(project: EvaluationProject) -> None:
    (project.folder / "rows.jsonl").write_text(json.dumps(RECORDED) + "\n")
    project.write(JUDGE.format(processor=""))
    project.run("--ep-no-op-rollout-processor", policy=False).assert_outcomes(passed=1)
    seen = json.loads((project.folder / "seen.json").read_text())
    assert seen["rollout_status"]["code"] == 4
    assert seen["execution_metadata"]["extra"] == RECORDED["execution_metadata"]["extra"]


def test_what_is_generated_replaces_what_was_recorded(project: EvaluationProject) -> None:
    (project.folder / "rows.jsonl").write_text(json.dumps(RECORDED) + "\n")
    project.write(JUDGE.format(processor=""))
    project.run().assert_outcomes(passed=1)
    seen = json.loads((project.folder / "seen.json").read_text())
    assert seen["rollout_status"]["code"] == 100
    assert seen["execution_metadata"]["extra"]["completion_ids"] != [[4]]
    assert seen["execution_metadata"]["extra"]["theirs"] is True
    assert seen["execution_metadata"]["usage"]["prompt_tokens"] > 3


def test_a_row_without_a_status_has_finished(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, rollout_processor=NoOpRolloutProcessor())
        def test_it(row):
            assert row.rollout_status.is_finished()
            assert row.execution_metadata.extra == {}
            assert row.input_metadata.completion_params == {}
            return 1.0
        """
    )
    project.run(policy=False).assert_outcomes(passed=1)
