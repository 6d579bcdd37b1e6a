"""A misspelled name is said with the one that is meant."""

import pytest

from holdfast.records.encoding.near_names import nearest


@pytest.mark.parametrize(
    ("name", "meant"),
    [("jugde", "judge"), ("scor", "score"), ("judge", "judge"), ("x", None), ("", None)],
)
def test_the_nearest_name_is_meant_if_one_is_near(name: str, meant: str | None) -> None:
    assert nearest(name, iter(["half", "judge", "score"])) == meant


def test_how_alike_names_have_to_be_is_up_to_the_caller() -> None:
    assert nearest("taks.jsonl", ["tasks.jsonl"], alike=0.8) == "tasks.jsonl"
    assert nearest("jugde", ["judge"], alike=0.9) is None
    assert nearest("any", []) is None
