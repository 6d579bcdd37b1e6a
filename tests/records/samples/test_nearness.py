"""Nearness is measured against exact numbers, by means and quantiles."""

import math
import random

import pytest

from holdfast.records.samples.nearness import coarsest, explained, gap_between, is_as_near

TOKENS = 600


def rounded(exact, *, size, seed):
    """Another rounding of the same numbers: coarse at unlikely tokens."""
    chance = random.Random(seed)
    return [value * (1 + chance.gauss(0, size)) for value in exact]


@pytest.fixture
def exact():
    chance = random.Random(3)
    return [-chance.expovariate(0.5) for _ in range(TOKENS)]


def test_two_roundings_of_the_same_numbers_are_equally_near(exact):
    plain = gap_between(rounded(exact, size=0.02, seed=1), exact)
    other = gap_between(rounded(exact, size=0.02, seed=2), exact)
    assert is_as_near(other, plain)
    assert is_as_near(plain, other)


def test_one_wild_token_decides_nothing(exact):
    values = rounded(exact, size=0.02, seed=2)
    values[17] -= 5.0
    plain = gap_between(rounded(exact, size=0.02, seed=1), exact)
    other = gap_between(values, exact)
    assert other.worst > 5 * plain.worst
    assert is_as_near(other, plain)


@pytest.mark.parametrize("share", [0.02, 0.2, 1.0])
def test_an_error_of_some_tokens_is_seen_above_the_rounding(exact, share):
    values = rounded(exact, size=0.02, seed=2)
    for place in range(int(share * TOKENS)):
        values[place] += 0.3
    plain = gap_between(rounded(exact, size=0.02, seed=1), exact)
    assert not is_as_near(gap_between(values, exact), plain)


def test_in_float32_only_its_own_rounding_is_allowed(exact):
    perfect = gap_between(exact, exact)
    assert is_as_near(gap_between([value + 5e-5 for value in exact], exact), perfect)
    assert not is_as_near(gap_between([value + 2e-4 for value in exact], exact), perfect)


@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
def test_a_number_that_is_not_finite_is_never_near(exact, wrong):
    gap = gap_between([*exact[:-1], wrong], exact)
    assert gap.mean == math.inf
    assert not is_as_near(gap, gap_between(exact, exact))


def test_the_coarsest_type_explains_the_gap():
    assert explained("float32", "float32") < explained("float32", "bfloat16")
    assert explained("float32", "") == explained("bfloat16")
    assert coarsest("float32", "float16") == "float16"
    assert coarsest("float32", "") == "bfloat16"
