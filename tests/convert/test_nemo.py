"""NeMo-RL: messages whose tokens, laid end to end, are the stream."""

import pytest
from hypothesis import given
from msgspec import structs

from holdfast.convert import from_nemo, to_nemo
from holdfast.records.errors import NotTrainable
from holdfast.records.samples.sample import Sample, TurnSpan
from support.convert.samples import aborted, groups, sample


def trained(each: Sample) -> Sample:
    """With the logprobs of what is trained in it: others have no place."""
    pairs = zip(each.logprobs, each.loss_mask, strict=True)
    return structs.replace(each, logprobs=[value if mask else 0.0 for value, mask in pairs])


@given(groups(branches=False))
def test_samples_come_back(samples: list[Sample]) -> None:
    rows = to_nemo(samples, missing_reward="leave_out")
    assert from_nemo(rows) == [trained(each) for each in samples if each.reward is not None]


@given(groups())
def test_the_longest_branch_comes_back(samples: list[Sample]) -> None:
    rows = to_nemo(samples, missing_reward="leave_out", branches="longest")
    for result in from_nemo(rows):
        assert any(result.token_ids == each.token_ids for each in samples)


@given(groups(branches=False))
def test_messages_concatenate_to_the_stream(samples: list[Sample]) -> None:
    rows = to_nemo(samples, missing_reward="leave_out", mask_truncated=True)
    kept = [each for each in samples if each.reward is not None]
    for row, expected in zip(rows, kept, strict=True):
        log = row["message_log"]
        assert isinstance(log, list)
        assert [token for message in log for token in message["token_ids"]] == expected.token_ids
        assert log[0]["role"] == "user"
        assert row["length"] == len(log[0]["token_ids"]), "NeMo finds a row's group by its prompt"
        assert row["loss_multiplier"] == (0.0 if expected.truncated else 1.0)
        for message in log:
            assert ("generation_logprobs" in message) == (message["role"] == "assistant")


def test_tensors_are_what_nemo_flattens() -> None:
    (row,) = to_nemo([sample()], tensors=True)
    assert from_nemo([row]) == [sample()]


def test_what_it_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(NotTrainable, match="2 branches"):
        to_nemo([sample(), sample(branch=1)])
    with pytest.raises(NotTrainable, match="reward is None"):
        to_nemo([sample(reward=None)])
    overlapping = [TurnSpan(3, 6, 1.0, 1.0, True), TurnSpan(5, 7, 1.0, 1.0, True)]
    with pytest.raises(NotTrainable, match="inside of another"):
        to_nemo([structs.replace(sample(), turns=overlapping)])
    with pytest.raises(NotTrainable, match="outside of its turns"):
        to_nemo([structs.replace(sample(), turns=[TurnSpan(3, 5, 1.0, 1.0, True)])])
    with pytest.raises(NotTrainable, match="in part"):
        to_nemo([structs.replace(sample(), loss_mask=[0, 0, 0, 1, 1, 1, 0])])


def test_placeholders_are_left_out() -> None:
    assert len(to_nemo([sample(), aborted()])) == 1


def test_a_sample_without_turns_has_them_by_its_mask() -> None:
    bare = structs.replace(sample(), turns=[], loss_mask=[0, 0, 0, 1, 1, 0, 1])
    (row,) = to_nemo([bare])
    assert [len(m["token_ids"]) for m in row["message_log"]] == [3, 2, 1, 1]  # type: ignore[attr-defined]
