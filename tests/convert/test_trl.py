"""TRL: one row for a rollout; a reward of None stays None."""

import pytest
from hypothesis import given

from holdfast.convert import from_trl, to_trl, to_trl_async
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.version import WeightVersion
from support.convert.samples import aborted, groups, sample

VERSIONS = [WeightVersion(1, "step-1", 1, "digest")]


@given(groups(branches=False))
def test_samples_come_back(samples: list[Sample]) -> None:
    columns = to_trl(samples, num_generations=4)
    results = from_trl(columns.columns)
    assert results == from_trl(columns)
    assert [each for each in results if not each.remove_sample] == samples
    assert len(results) == 4 * len({each.group for each in samples})
    assert columns.placeholders == len(results) - len(samples)


@given(groups(branches=False))
def test_a_missing_reward_stays_none(samples: list[Sample]) -> None:
    columns = to_trl(samples, num_generations=4).columns
    for result, reward in zip(from_trl(columns), columns["holdfast_reward"], strict=True):
        assert reward is None if result.remove_sample else reward == result.reward


def test_a_failed_member_is_in_nothing() -> None:
    columns = to_trl([sample("a", 0), aborted("a", 1)]).columns
    assert columns["prompt_ids"][0] == columns["prompt_ids"][1]
    assert (columns["env_mask"][1], columns["holdfast_reward"][1]) == ([0], None)


def test_branches_are_refused_or_the_longest_is_kept_by_name() -> None:
    branches = [sample("a", 0), sample("a", 0, branch=1, reply=9)]
    with pytest.raises(NotTrainable, match="2 branches"):
        to_trl(branches)
    columns = to_trl(branches, branches="longest")
    assert (columns.left_out, len(columns.columns["completion_ids"][0])) == (1, 9)


def test_a_group_that_is_larger_than_the_trainers_is_refused() -> None:
    with pytest.raises(UsageError, match="expects 1"):
        to_trl([sample("a", 0), sample("a", 1)], num_generations=1)
    with pytest.raises(UsageError, match="from_trl wants the columns of to_trl"):
        from_trl({"prompt_ids": []})


def test_the_asynchronous_trainer_gets_advantages_over_trajectories() -> None:
    samples = [
        sample("a", 0, reward=1.0),
        sample("a", 0, branch=1, reward=1.0),
        sample("a", 1, reward=0.0),
        sample("a", 2, reward=None),
        aborted("a", 3),
    ]
    rows = to_trl_async(samples, versions=VERSIONS)
    assert [row["advantage"] for row in rows] == pytest.approx(
        [0.70710, 0.70710, -0.70710], abs=1e-4
    )
    assert {row["model_version"] for row in rows} == {1}
    assert rows[0]["completion_mask"].tolist() == samples[0].loss_mask  # type: ignore[attr-defined]
    with pytest.raises(NotTrainable, match="none of the run's"):
        to_trl_async(samples, versions=[])
