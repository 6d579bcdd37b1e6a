"""A mistake in a judge's arguments is one line, when it is made."""

import pytest

import holdfast
from holdfast.records.errors import UsageError
from support.rollout.stage import Oracle


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rubric": ""}, "a rubric is a text"),
        ({"rubric": " "}, "none is empty"),
        ({"rubric": 5}, "a rubric is a text.*: 5"),
        ({"rubric": {}}, "a rubric is a text"),
        ({"rubric": {"a": 3}}, "a rubric is a text"),
        ({"rubric": {"": "a"}}, "a rubric is a text"),
        ({"scale": (1, 1)}, "scale goes from a smaller number"),
        ({"scale": (float("-inf"), 1)}, "scale goes from a smaller number"),
        ({"scale": 3}, "scale is two numbers"),
        ({"scale": "01"}, "scale is two numbers"),
        ({"repairs": -1}, "repairs must be 0 or more"),
        ({"repairs": "2"}, "repairs must be a whole number"),
        ({"policy": None}, "a judge wants a policy"),
        ({"policy": 5}, "policy is of type int"),
        ({"policy": ""}, "policy is empty"),
        ({"policy": Oracle(), "model": "m"}, "model and api_key go with an address"),
        ({"model": 5}, "model is a name"),
        ({"compare": "yes"}, "compare is True or False, not 'yes'"),
        ({"target": 1}, "target is True or False, not 1"),
        ({"sampling": 5}, r"sampling is a Sampling\(…\) or a dict, not 5"),
        ({"sampling": {"temprature": 1}}, "temprature"),
        ({"cache": 5}, "cache is the path of a file"),
        ({"cache": ""}, "cache is the path of a file"),
        ({"rubrics": "x"}, "Judge has no argument 'rubrics'; is 'rubric' meant"),
        ({"temperature": 1}, "no argument 'temperature'; is sampling={'temperature': …} meant"),
        ({"xyz": 1}, "Judge has no argument 'xyz'; it has rubric, policy, "),
    ],
)
def test_a_mistake_is_found_when_the_judge_is_made(changes: dict, message: str) -> None:
    options = {"rubric": "Is it right?", "policy": "http://127.0.0.1:1"} | changes
    with pytest.raises(UsageError, match=message):
        holdfast.Judge(**options)


def test_what_is_missing_or_in_the_wrong_place_is_said_with_an_example() -> None:
    with pytest.raises(UsageError, match=r"Judge wants the policy that judges, as in Judge\("):
        holdfast.Judge("Is it right?")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="Judge wants a rubric"):
        holdfast.Judge(policy="http://127.0.0.1:1")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="everything else by its name"):
        holdfast.Judge("Is it right?", "http://127.0.0.1:1")  # type: ignore[call-arg,misc]


def test_a_key_of_another_type_is_not_said() -> None:
    with pytest.raises(UsageError, match=r"^api_key is a text, not of type bytes$"):
        holdfast.Judge("Is it right?", policy="openai/m", api_key=b"sk-0")  # type: ignore[arg-type]
