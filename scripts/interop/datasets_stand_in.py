"""Stands in for Hugging Face's `datasets`, for the one data set that an example loads with it."""

_TABLE = "Please convert the Input Table from CSV format to JSON format."
_ROWS = {
    "cta": ("Which class is this column: 1, 2, 3?", "number"),
    "tablejoin": ("Join the tables.", "{'a': 'b'}"),
    "tablereformat": (_TABLE, '{"a":{"0":1}}'),
}


def load_dataset(name: str, split: str) -> list[dict[str, object]]:
    assert (name, split) == ("livebench/data_analysis", "test")
    return [
        {"task": task, "turns": [turn], "ground_truth": truth, "livebench_release_date": ""}
        for task, (turn, truth) in _ROWS.items()
    ]
