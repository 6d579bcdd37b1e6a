"""A row that was written into columns is the row that it was."""

import json

from holdfast.evaluation.data.dataset import as_row, from_columns

ROW = {
    "messages": [{"role": "user", "content": "1 + 1?"}],
    "tools": [{"type": "function", "function": {"name": "add"}}],
    "input_metadata": {"row_id": "a", "completion_params": {"model": "m"}},
    "ground_truth": "2",
    "evaluation_result": {"score": 1.0},
    "execution_metadata": {
        "run_id": "r",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        "extra": {"rewards": [1.0, 0.0], "samples": [0, 1], "level": "hard"},
    },
    "note": {"by": "hand"},
}


def in_columns(row: dict) -> dict:
    texts = ("tools", "input_metadata", "ground_truth", "evaluation_result")
    executed = row["execution_metadata"]
    extra = executed["extra"]
    return {
        "messages": row["messages"],
        **{name: json.dumps(row[name]) for name in texts},
        "rollout_status": None,
        "execution_metadata": {
            "run_id": executed["run_id"],
            "usage": json.dumps(executed["usage"]),
            "cost_metrics": None,
            "extra": {
                "rewards": extra["rewards"],
                "samples": extra["samples"],
                "others": json.dumps({"level": extra["level"]}),
            },
        },
        "others": json.dumps({"note": row["note"]}),
    }


def test_texts_are_what_they_say_and_what_was_absent_is() -> None:
    assert from_columns(in_columns(ROW)) == ROW
    assert as_row(in_columns(ROW)).ground_truth == "2"


def test_another_row_stays_as_it_is() -> None:
    row = {"prompt": "[1, 2]", "ground_truth": "3", "others": "{}"}
    assert from_columns(row) is row
