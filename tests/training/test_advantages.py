"""Advantages: hand-computed cases."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.errors import UsageError
from holdfast.training.advantages import (
    ESTIMATORS,
    OverlongPenalty,
    estimate,
    estimate_by_turn,
    is_informative,
    returns_to_go,
)


def advantages(name, *groups):
    return [
        [None if value is None else round(value, 4) for value in group]
        for group in estimate(groups, ESTIMATORS[name])
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [0.5, 0.5, -1.5, 0.5]),
        ("dr_grpo", [0.25, 0.25, -0.75, 0.25]),
        ("rloo", [0.3333, 0.3333, -1.0, 0.3333]),
        ("reinforce++", [0.5, 0.5, -1.5, 0.5]),
        ("reinforce++-baseline", [0.5, 0.5, -1.5, 0.5]),
        ("maxrl", [0.3333, 0.3333, -1.0, 0.3333]),
    ],
)
def test_each_estimator_on_one_group(name, expected):
    assert advantages(name, [1.0, 1.0, 0.0, 1.0]) == [pytest.approx(expected, abs=2e-4)]


def test_the_batch_is_normalized_over_all_groups():
    values = advantages("reinforce++", [1.0, 0.0], [0.0, 0.0])
    assert values == [[1.5, -0.5], [-0.5, -0.5]]
    results = advantages("reinforce++-baseline", [1.0, 0.0], [0.0, 0.0])
    assert results == [pytest.approx([1.2247, -1.2247], abs=1e-3), [0.0, 0.0]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_lost_member_bends_no_baseline(name):
    (first, second, third), other = advantages(name, [1.0, 1.0, 1.0], [0.0, 1.0])
    values = advantages(name, [1.0, 1.0, None, 1.0], [0.0, 1.0])
    assert values == [[first, second, None, third], other]


def test_all_correct_but_for_a_lost_member_gives_zero_advantages():
    assert advantages("grpo", [1.0, 1.0, None, 1.0]) == [[0.0, 0.0, None, 0.0]]
    # As a reward of zero, it would have bent them.
    assert advantages("grpo", [1.0, 1.0, 0.0, 1.0]) == [[0.5, 0.5, -1.5, 0.5]]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "maxrl", "reinforce++-baseline"])
def test_a_group_of_one_gives_zero(name):
    assert advantages(name, [3.0], [None, 2.0], [None, None], []) == [
        [0.0], [None, 0.0], [None, None], [],
    ]  # fmt: skip


@given(
    st.sampled_from(list(ESTIMATORS)),
    st.lists(st.lists(st.none() | st.floats(-100, 100), max_size=6), max_size=5),
)
def test_the_shape_is_kept_and_every_number_is_finite(name, groups):
    results = estimate(groups, ESTIMATORS[name])
    assert [len(group) for group in results] == [len(group) for group in groups]
    for rewards, values in zip(groups, results, strict=True):
        for reward, value in zip(rewards, values, strict=True):
            assert (reward is None) == (value is None)
            assert value is None or math.isfinite(value)


def test_equal_rewards_give_exactly_zero():
    assert estimate([[0.1] * 3])[0] == [0.0] * 3


def test_a_group_is_informative_when_its_valid_rewards_differ():
    assert is_informative([1.0, None, 0.0])
    assert not is_informative([1.0, None, 1.0])
    assert not is_informative([1.0, None])
    assert not is_informative([])


def test_returns_are_discounted_sums_of_what_follows():
    assert returns_to_go([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]
    with pytest.raises(UsageError, match="discount"):
        returns_to_go([1.0], 1.5)


def test_turns_are_compared_with_the_same_turn_of_the_others():
    groups = [[[3.0, 1.0], [1.0], None, []], [None]]
    estimates = estimate_by_turn(groups, ESTIMATORS["dr_grpo"])
    assert estimates == [[[1.0, 0.0], [-1.0], None, []], [None]]
    # All turns alike: the same as without turns.
    rewards = [[1.0, 0.0, 0.5], [2.0, 2.5]]
    for estimator in ESTIMATORS.values():
        by_turn = estimate_by_turn([[[r] * 3 for r in group] for group in rewards], estimator)
        plain = estimate(rewards, estimator)
        assert by_turn == [[[value] * 3 for value in group] for group in plain]


def test_the_overlong_penalty_grows_over_its_margin():
    penalty = OverlongPenalty(length=100, margin=20)
    assert [penalty.apply(1.0, tokens) for tokens in (80, 90, 100, 150)] == [1.0, 0.5, 0.0, 0.0]
    with pytest.raises(UsageError, match="margin"):
        OverlongPenalty(length=10, margin=20)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(estimator, wrong):
    with pytest.raises(UsageError, match="rewards are finite numbers, or None"):
        estimate([[1.0, wrong, None]], estimator)
