"""slime: its `Sample` in groups, and the four ways in which a placeholder goes wrong."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.convert import from_slime, to_slime
from holdfast.convert.slime import is_placeholder
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample
from support.convert.samples import aborted, groups, sample


def flattened(data: list) -> list:
    """As slime does it: it looks at the first element alone."""
    while isinstance(data[0], list):
        data = list(itertools.chain.from_iterable(data))
    return data


@given(groups(), st.booleans())
def test_samples_come_back(samples: list[Sample], placeholders: bool) -> None:
    kept = [each for each in samples if each.reward is not None]
    size = 4 if placeholders else None
    rows = to_slime(samples, group_size=size, placeholders=placeholders, missing_reward="leave_out")
    result = [each for each in from_slime(rows) if not each.remove_sample]
    assert result == kept


@given(groups())
def test_fields_are_over_the_response_and_branches_share_a_rollout(samples: list[Sample]) -> None:
    rows = to_slime(samples, missing_reward="leave_out")
    kept = [each for each in samples if each.reward is not None]
    for row, expected in zip(flattened(rows) if rows else [], kept, strict=True):
        assert row["tokens"] == expected.token_ids
        assert row["response_length"] == len(row["loss_mask"]) == len(row["rollout_log_probs"])
        assert row["status"] == ("truncated" if expected.truncated else "completed")
        assert sum(row["loss_mask"]) == sum(expected.loss_mask)
    by_rollout: dict[int, set[str]] = {}
    for row in flattened(rows) if rows else []:
        by_rollout.setdefault(row["rollout_id"], set()).add(
            row["metadata"]["holdfast"]["trajectory"]
        )
    assert all(len(names) == 1 for names in by_rollout.values())
    assert len(by_rollout) == len({each.trajectory for each in kept})


# --- the four ways


def test_a_placeholder_has_the_shape_of_its_siblings() -> None:
    """Mixed shapes crash slime."""
    plain = to_slime([sample("a", 0), aborted("a", 1)], placeholders=True)
    assert all(isinstance(member, dict) for member in plain[0])
    fanned = to_slime(
        [sample("a", 0), sample("a", 0, branch=1), aborted("a", 1), sample("b", 0)],
        placeholders=True,
    )
    assert [[type(member) for member in group] for group in fanned] == [[list, list], [list]]
    for row in flattened(plain) + flattened(fanned):
        assert isinstance(row, dict)
    (stand_in,) = [row for row in flattened(fanned) if row["remove_sample"]]
    assert stand_in["tokens"] == [0, 0]
    assert stand_in["response_length"] == 1
    assert (stand_in["loss_mask"], stand_in["rollout_log_probs"]) == ([0], [0.0])
    assert (stand_in["reward"], stand_in["status"]) == (0.0, "aborted")


def test_a_placeholder_is_only_written_where_the_baseline_leaves_it_out() -> None:
    """Else an all-correct group of four gets advantages of 0.5 0.5 -1.5 0.5."""
    group = [*(sample("a", number) for number in range(3)), aborted("a", 3)]
    with pytest.raises(NotTrainable, match="placeholder"):
        to_slime(group, group_size=4)
    assert len(to_slime(group)[0]) == 3


def test_a_placeholder_is_recognized_so_that_it_is_never_a_prompt() -> None:
    """`[0, 0]` must not come back to an engine."""
    rows = flattened(to_slime([sample(), aborted()], placeholders=True))
    assert [is_placeholder(row) for row in rows] == [False, True]


def test_groups_of_unequal_size_stay_as_they_are() -> None:
    rows = to_slime([sample("a", 0), sample("a", 1), sample("b", 0)])
    assert [len(group) for group in rows] == [2, 1]


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="fan_out=False"):
        to_slime([sample(), sample(branch=1)], fan_out=False)
    with pytest.raises(UsageError, match="expects 1"):
        to_slime([sample("a", 0), sample("a", 1)], group_size=1)
    with pytest.raises(NotTrainable, match="reward is None"):
        to_slime([sample(reward=None)])


def test_a_fixed_group_has_a_placeholder_for_what_nobody_scored() -> None:
    """A consumer that slices by n would mix groups from there on."""
    group = [sample("a", 0), sample("a", 1, reward=None), sample("a", 2), aborted("a", 3)]
    more = [sample("b", number) for number in range(4)]
    for size in (None, 4):
        rows = to_slime(
            [*group, *more], group_size=size, placeholders=True, missing_reward="leave_out"
        )
        assert [len(batch) for batch in rows] == [4, 4]
        assert [is_placeholder(row) for row in rows[0]] == [False, True, False, True]  # type: ignore[arg-type]
        assert [row["index"] for row in flattened(rows)] == list(range(8))
    branches = [sample("a", 1, reward=None), sample("a", 1, reward=None, branch=1), sample("a", 0)]
    (results,) = to_slime(branches, placeholders=True, missing_reward="leave_out")
    assert len(results) == 2, "one stands for all of its branches"


def test_a_size_without_placeholders_refuses_what_nobody_scored() -> None:
    group = [sample("a", 0), sample("a", 1, reward=None)]
    with pytest.raises(NotTrainable, match="1 valid trajectories of 2"):
        to_slime(group, group_size=2, missing_reward="leave_out")
    assert [len(results) for results in to_slime(group, missing_reward="leave_out")] == [1]
