"""What cannot be read as a verdict is named, so that it can be asked for again."""

import pytest

from holdfast.engine.judging.arguments import rubric_from
from holdfast.engine.judging.prompt import NoVerdict, read_verdict

RUBRIC = rubric_from({"right": "Is it right?"}, (0, 10))


def verdict(score: str):
    names = tuple(RUBRIC.criteria)
    return read_verdict(f'{{"{names[0]}": {{"score": {score}, "reason": "so"}}}}', RUBRIC, names)


def test_a_score_in_range_is_read():
    assert list(verdict("7").scores.values()) == [7.0]
    assert list(verdict("null").scores.values()) == [None]


@pytest.mark.parametrize(
    ("score", "why"),
    [
        ("1" + "0" * 401, "is 1000"),
        ("1" + "0" * 5000, "not JSON"),
        ("1e999", "is inf"),
        ("-Infinity", "is -inf"),
        ("NaN", "not a number"),
        ("true", "not a number"),
        ("11", "is 11"),
    ],
    ids=["large", "huge", "1e999", "-inf", "nan", "true", "11"],
)
def test_one_that_is_no_number_of_the_scale_is_named(score, why):
    with pytest.raises(NoVerdict, match=why):
        verdict(score)
