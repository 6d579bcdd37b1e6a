"""verl: rows of arrays in its shape; what goes in comes back; what it cannot hold is refused."""

import numpy as np
import pytest
from hypothesis import given
from msgspec import structs

from holdfast.convert import from_verl, to_agent_loop_output, to_verl
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample, StepReward
from holdfast.records.samples.version import WeightVersion
from support.convert.samples import aborted, groups, sample

VERSIONS = [WeightVersion(n, f"step-{n}", n, f"digest {n}") for n in range(1, 20)]


def rewarded(samples: list[Sample]) -> list[Sample]:
    return [each for each in samples if each.reward is not None]


@given(groups())
def test_samples_come_back(samples: list[Sample]) -> None:
    if not rewarded(samples):
        return
    batch = to_verl(samples, missing_reward="leave_out", pad_token_id=7)
    for result, expected in zip(from_verl(batch), rewarded(samples), strict=True):
        assert result.reward == pytest.approx(expected.reward, rel=1e-6, abs=1e-6)
        assert structs.replace(result, reward=expected.reward) == expected


@given(groups())
def test_rows_have_the_shape_that_verl_documents(samples: list[Sample]) -> None:
    if not rewarded(samples):
        return
    batch = to_verl(samples, missing_reward="leave_out", versions=VERSIONS, pad_token_id=7)
    tensors = batch.tensors
    wide, long = tensors["prompts"].shape[1], tensors["responses"].shape[1]
    assert tensors["input_ids"].shape[1] == wide + long
    for row, expected in enumerate(rewarded(samples)):
        there = tensors["attention_mask"][row]
        start = expected.turns[0].start
        assert there[:wide].tolist() == [0] * (wide - start) + [1] * start
        length = len(expected.token_ids) - start
        assert there[wide:].tolist() == [1] * length + [0] * (long - length)
        assert (tensors["input_ids"][row][there == 0] == 7).all()
        assert not tensors["response_mask"][row][length:].any()
        assert not tensors["rollout_log_probs"][row][length:].any()
        positions = np.clip(np.cumsum(there) - 1, 0, None)
        assert tensors["position_ids"][row].tolist() == positions.tolist()
        assert tensors["rm_scores"][row].sum() == pytest.approx(expected.reward, abs=1e-5)
        assert batch.non_tensors["uid"][row] == expected.group
    trained = tensors["response_mask"].sum()
    assert trained == sum(sum(each.loss_mask) for each in rewarded(samples))


def test_rewards_of_steps_are_on_their_own_tokens() -> None:
    earned = structs.replace(sample(reward=1.0), step_rewards=[StepReward(5, 0.25)])
    scores = to_verl([earned]).tensors["rm_scores"]
    assert scores.tolist() == [[0.0, 0.25, 0.0, 0.75]]


def test_versions_become_steps_and_are_never_guessed() -> None:
    batch = to_verl([sample()], versions=VERSIONS)
    assert (batch.non_tensors["min_global_steps"][0], batch.non_tensors["max_global_steps"][0]) == (
        1,
        1,
    )
    assert to_verl([sample()]).non_tensors["min_global_steps"][0] is None


def test_a_failed_member_makes_a_smaller_group() -> None:
    batch = to_verl([sample("a", 0), sample("a", 1), aborted("a", 2)])
    assert len(batch.tensors["input_ids"]) == 2


def test_what_verl_has_no_place_for_is_refused_by_name() -> None:
    with pytest.raises(NotTrainable, match="reward is None"):
        to_verl([sample(reward=None)])
    with pytest.raises(UsageError, match="prompt_length is 2"):
        to_verl([sample(prompt=3)], prompt_length=2)
    with pytest.raises(UsageError, match="response_length is 2"):
        to_verl([sample(reply=3)], response_length=2)
    with pytest.raises(UsageError, match="divided by 2"):
        to_verl([sample()], divisible_by=2)
    with pytest.raises(NotTrainable, match="no prompt"):
        to_verl([sample(prompt=0)])
    with pytest.raises(UsageError, match="no sample"):
        to_verl([aborted()])


def test_the_longest_branch_trains_what_it_shares() -> None:
    first = structs.replace(sample(reply=2), branch=0)
    ids = [*first.token_ids, 7, 8, 9]
    second = structs.replace(
        sample(reply=5), branch=1, token_ids=ids, loss_mask=[0, 0, 0, 0, 0, 0, 1, 1]
    )
    batch = to_verl([first, second], branches="longest")
    assert batch.left_out == 1
    assert batch.tensors["response_mask"].tolist() == [[1, 1, 0, 1, 1]]


def test_an_agent_loop_returns_one_branch() -> None:
    output = to_agent_loop_output(sample(), versions=VERSIONS)
    assert [len(output[name]) for name in ("prompt_ids", "response_ids", "response_mask")] == [
        3,
        4,
        4,
    ]  # type: ignore[arg-type]
    assert output["reward_score"] == 1.0


def test_only_what_is_ours_is_read_back() -> None:
    batch = to_verl([sample()])
    del batch.non_tensors["holdfast"]
    with pytest.raises(UsageError, match="this one has no 'holdfast'"):
        from_verl(batch)


def test_an_agent_loop_returns_no_sample_without_a_reward() -> None:
    """One None takes the rewards of its whole batch away in verl."""
    with pytest.raises(NotTrainable, match="task 'a', sample 0: its reward is None"):
        to_agent_loop_output(sample(reward=None))
