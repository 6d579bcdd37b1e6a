"""The mean of rewards so far is that of the statistics, with the same error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.progress.clustered import RewardMean
from holdfast.evaluation.stats.estimates import clustered_mean

rewards = st.lists(
    st.tuples(st.sampled_from("abcde"), st.floats(-10, 10).map(lambda x: round(x, 3))), max_size=30
)


@given(rewards)
def test_it_is_what_the_statistics_say(given_rewards) -> None:
    mean, clusters = RewardMean(), {}
    for task, reward in given_rewards:
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
