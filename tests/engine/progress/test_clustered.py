"""The mean of rewards so far is that of the statistics, with the same error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.progress.clustered import RewardMean, error_text, number_text
from holdfast.evaluation.stats.estimates import clustered_mean

rewards = st.lists(
    st.tuples(st.sampled_from("abcde"), st.floats(-10, 10).map(lambda x: round(x, 3))), max_size=30
)


@given(rewards)
def test_it_is_what_the_statistics_say(listed_rewards) -> None:
    mean, clusters = RewardMean(), {}
    for task, reward in listed_rewards:
        mean.add(task, reward)
        clusters.setdefault(task, []).append(reward)
    estimate = clustered_mean(clusters)
    if estimate is None:
        assert (mean.mean, mean.error) == (None, None)
        return
    assert mean.mean == pytest.approx(estimate.value, abs=1e-9)
    if estimate.standard_error is None:
        assert mean.error is None
    else:
        assert mean.error == pytest.approx(estimate.standard_error, abs=1e-9)


def test_rewards_as_large_as_floats_can_be_break_nothing_and_take_no_line() -> None:
    mean = RewardMean()
    for task in "ab":
        mean.add(task, 1e308)
    assert mean.mean == float("inf")
    assert number_text(1e308) == "1e+308"
    assert number_text(-0.5, sign="+") == "-0.5000"
    assert error_text(float("nan")) == " ± nan"


@pytest.mark.parametrize("reward", [0.1, 0.7, 0.8, 0.9, 1 / 3])
def test_equal_rewards_have_no_error_whatever_their_digits(reward: float) -> None:
    """The mean of equal rewards may differ from them in its last digit."""
    mean = RewardMean()
    for task in "abcabc":
        mean.add(task, reward)
    estimate = clustered_mean({task: [reward] * 2 for task in "abc"})
    assert (mean.error, estimate.standard_error) == (0.0, 0.0)


def test_an_error_that_is_unknown_is_not_called_0() -> None:
    assert (error_text(None), error_text(0.0), error_text(0.25)) == ("", "", " ± 0.2500")
