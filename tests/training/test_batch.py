"""From the journal to sequences with advantages and weights: what counts, where, and how much."""

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import holdfast
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.history import History
from holdfast.records.samples.sample import Sample, StepReward, TurnSpan, samples_of
from holdfast.records.step import EnvironmentStepped, Finished
from holdfast.records.trajectory import Status
from holdfast.training.advantages import ESTIMATORS, OverlongPenalty, estimate
from holdfast.training.batch import (
    TrainedTrajectory,
    TrainingGroup,
    group_samples,
    sequences_of,
)
from holdfast.training.objective.objective import PRESETS, Mean, Objective
from support.engine.local_run import LocalRun, turn
from support.records import generated, ready, started

PLAIN = Objective(ESTIMATORS["dr_grpo"])


# --- a lost trajectory bends no baseline


def exported(tmp_path, members, *, fixed_groups):
    """What a trainer of its own reads of one group with these (status, reward)."""

    async def body():
        journal = SqliteJournal(tmp_path / f"{fixed_groups}.db")
        _, _, (claim,) = await ready(journal, "a", samples=len(members))
        for lease, (status, reward) in zip(claim.open, members, strict=True):
            records = [started(), generated("0"), Finished(status, "returned", reward, 2.0)]
            await journal.append(lease, records, status=status, settled=True)
        result = [s async for s in holdfast.samples(journal, "run", fixed_groups=fixed_groups)]
        await journal.close()
        return result

    return asyncio.run(body())


@pytest.mark.parametrize("fixed_groups", [False, True])
@pytest.mark.parametrize("lost", [Status.FAILED, Status.ABORTED])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_all_correct_but_for_a_lost_member_gives_zeros(tmp_path, name, lost, fixed_groups):
    members = [(Status.COMPLETED, 1.0)] * 2 + [(lost, None)] + [(Status.COMPLETED, 1.0)]
    samples = exported(tmp_path, members, fixed_groups=fixed_groups)
    assert len(samples) == 3 + fixed_groups, "a placeholder where a fixed n is wanted"
    sequences = sequences_of(group_samples(samples), Objective(ESTIMATORS[name]))
    assert [sequence.advantages for sequence in sequences] == [[0.0] * 3] * 3
    assert sum(sequence.weight * 3 for sequence in sequences) == pytest.approx(1)


def test_a_service_that_dies_is_a_lost_trajectory_and_no_reward_of_zero():
    """What a tool asks is gone: nothing listens there any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

    async def solve(t):
        await turn(t)
        if t.session.name.endswith("/2"):
            await asyncio.open_connection(*address)
        return 1.0

    local = LocalRun("a", samples=4)
    local.run(solve, max_retry=1)
    assert local.report().by_status == {"COMPLETED": 3, "FAILED": 1}

    async def read():
        return [s async for s in holdfast.samples(local.journal, "run")]

    sequences = sequences_of(group_samples(asyncio.run(read())), Objective())
    assert len(sequences) == 3
    assert not any(value for sequence in sequences for value in sequence.advantages)


# --- trees


def trajectory(*steps, reward=1.0, number=0, status=Status.COMPLETED):
    history = History([started(), *steps, Finished(status, "returned", reward, 2.0)])
    samples = samples_of(history, task="a", group="a", sample=number)
    return TrainedTrajectory(f"a/{number}", reward, tuple(samples))


def branched(number, reward, branches):
    """A turn of three tokens, and as many second turns of two tokens that go on from it."""
    steps = [generated("0", ids=(3, 4, 5))]
    for index in range(branches):
        steps.append(
            generated(f"{1 + index}", base="0", keep=5, delta=(9,), ids=(10 + index, 20 + index))
        )
    return trajectory(*steps, reward=reward, number=number)


@pytest.mark.parametrize("mean", Mean)
def test_a_trajectory_of_branches_weighs_as_one_and_each_sampled_token_is_trained_once(mean):
    group = TrainingGroup("a", (branched(0, 1.0, 3), branched(1, 0.0, 1)))
    goal = Objective(mean=mean, constant=100 if mean is Mean.CONSTANT else None)
    sequences = sequences_of([group], goal)
    assert [len(s.tokens.trained) for s in sequences] == [5, 2, 2, 5]
    first = sum(s.weight * len(s.tokens.trained) for s in sequences[:3])
    second = sequences[3].weight * 5
    if mean is Mean.TRAJECTORIES:
        assert (first, second) == (pytest.approx(1 / 2), pytest.approx(1 / 2))
    elif mean is Mean.TOKENS:
        assert (first, second) == (pytest.approx(9 / 14), pytest.approx(5 / 14))
    else:
        assert (first, second) == (pytest.approx(9 / 200), pytest.approx(5 / 200))
    # And in the baseline: two trajectories, whose rewards are 1 and 0.
    values = [value for s in sequences[:3] for value in s.advantages]
    assert values == pytest.approx([0.7071] * 9, abs=1e-4)


# --- truncation


def truncated_group():
    members = [
        trajectory(generated("0"), reward=1.0),
        trajectory(generated("0"), reward=1.0, number=1),
        trajectory(generated("0"), reward=0.0, number=2, status=Status.TRUNCATED),
        trajectory(generated("0"), reward=1.0, number=3),
    ]
    return TrainingGroup("a", tuple(members))


def test_a_truncated_trajectory_is_kept_or_masked_and_in_the_baseline_either_way():
    kept = sequences_of([truncated_group()], PLAIN, truncation="keep")
    assert [s.advantages[0] for s in kept] == [0.25, 0.25, -0.75, 0.25]
    masked = sequences_of([truncated_group()], PLAIN, truncation="mask")
    assert [s.advantages[0] for s in masked] == [0.25, 0.25, 0.25]
    assert sum(3 * s.weight for s in masked) == pytest.approx(1), "the mean is of what is trained"


def test_the_overlong_penalty_is_taken_off_before_rewards_are_compared():
    members = [
        trajectory(generated("0", ids=tuple(range(3, 3 + size))), number=number)
        for number, size in enumerate((8, 9, 10, 12))
    ]
    penalty = OverlongPenalty(length=10, margin=2)
    sequences = sequences_of([TrainingGroup("a", tuple(members))], PLAIN, overlong=penalty)
    # Of rewards 1, 0.5, 0 and 0.
    assert [s.advantages[0] for s in sequences] == [0.625, 0.125, -0.375, -0.375]


# --- rewards by place


def acted(path, reward):
    return EnvironmentStepped(path, b"", "go", "seen", reward, False, environment="e")


def episode(number, rewards, *, total=None):
    """A turn and a step in an environment, as often as there are rewards."""
    steps, base, length = [], "", 0
    for index, reward in enumerate(rewards):
        path = f"{2 * index}"
        steps.append(generated(path, base=base, keep=length, delta=(1,), ids=(7, 8)))
        steps.append(acted(f"{2 * index + 1}", reward))
        base, length = path, length + 3
    reward = sum(rewards) if total is None else total
    return trajectory(*steps, reward=reward, number=number)


@pytest.mark.parametrize(
    ("discount", "expected"),
    [(1.0, [3.0, 2.0, 2.0]), (0.5, [1.5, 1.0, 2.0]), (0.0, [1.0, 0.0, 2.0])],
)
def test_a_turn_is_credited_with_what_was_earned_from_it_on(discount, expected):
    item = episode(0, [1.0, 0.0, 2.0])
    assert item.returns(3.0, discount) == expected
    # What a scorer gave beyond comes with the last turn, so that it is all in all `reward`.
    assert episode(0, [0.0, 0.0], total=1.0).returns(1.0, discount) == [discount, 1.0]
    assert episode(0, [0.5, 0.0], total=1.0).returns(1.0, 1.0) == [1.0, 0.5]


def test_returns_are_compared_turn_by_turn():
    group = TrainingGroup("a", (episode(0, [1.0, 0.0]), episode(1, [0.0, 1.0])))
    assert [s.advantages for s in sequences_of([group], PLAIN)] == [[0.0] * 4] * 2
    sequences = sequences_of([group], PLAIN, discount=1.0)
    # From the first turn on both earned 1; from the second on, 0 and 1.
    assert [s.advantages for s in sequences] == [[0.0, 0.0, -0.5, -0.5], [0.0, 0.0, 0.5, 0.5]]


def test_one_that_ended_stands_with_its_last_return():
    group = TrainingGroup("a", (episode(0, [0.0, 0.0, 1.0]), episode(1, [1.0]), episode(2, [0.0])))
    sequences = sequences_of([group], PLAIN, discount=1.0)
    third = pytest.approx(1 / 3)
    assert [s.advantages for s in sequences] == [
        [third] * 6,
        [third] * 2,
        [pytest.approx(-2 / 3)] * 2,
    ]


def test_a_discount_prefers_the_short_way():
    group = TrainingGroup("a", (episode(0, [0.0, 1.0]), episode(1, [1.0])))
    first, second = sequences_of([group], PLAIN, discount=0.5)
    assert (first.advantages, second.advantages) == ([-0.25, -0.25, 0.0, 0.0], [0.25, 0.25])


@pytest.mark.parametrize("name", ESTIMATORS)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3))
def test_with_one_reward_at_the_end_no_discount_changes_nothing(name, sizes):
    groups = [
        TrainingGroup(
            str(number),
            tuple(
                episode(member, [0.0] * turns, total=float((member + turns) % 3))
                for member, turns in enumerate(turns_of)
            ),
        )
        for number, turns_of in enumerate(sizes)
    ]
    goal = Objective(ESTIMATORS[name])
    assert sequences_of(groups, goal, discount=1.0) == sequences_of(groups, goal)


def test_rewards_of_branches_count_once_and_for_what_came_before():
    def sample(branch, rewards, turns, mask):
        return Sample(
            task="a", group="a", sample=0, branch=branch, status="COMPLETED", reason="",
            token_ids=[1, 2, 3, 4], loss_mask=mask, logprobs=[0.0] * 4, version_spans=[],
            reward=6.0, step_rewards=rewards, turns=turns,
        )  # fmt: skip

    first = sample(
        0, [StepReward(2, 1.0)],
        [TurnSpan(1, 2, 1.0, 1.0, True), TurnSpan(3, 4, 1.0, 1.0, True)], [0, 1, 0, 1],
    )  # fmt: skip
    # A branch that begins with another's turn, and one that does not say where its turns lie.
    second = sample(
        1, [StepReward(1, 2.0), StepReward(4, 1.0)],
        [TurnSpan(1, 2, 1.0, 1.0, False), TurnSpan(3, 4, 1.0, 1.0, True)], [0, 0, 0, 1],
    )  # fmt: skip
    third = sample(2, [], [], [0, 0, 1, 1])
    item = TrainedTrajectory("a/0", 6.0, (first, second, third))
    assert item.returns(6.0, 1.0) == [6.0, 5.0, 3.0, 2.0]
    group = TrainingGroup("a", (item,))
    sequences = sequences_of([group], Objective(ESTIMATORS["reinforce++"]), discount=1.0)
    assert [len(s.advantages) for s in sequences] == [2, 1, 2]


@pytest.mark.parametrize("discount", [None, 1.0])
def test_a_branch_without_trained_tokens_is_in_no_loss(discount):
    item = branched(0, 1.0, 2)
    masked = structs.replace(item.samples[1], loss_mask=[0] * len(item.samples[1].token_ids))
    both = structs.replace(item, samples=(item.samples[0], masked))
    alone = structs.replace(item, samples=(item.samples[0],))
    goal = Objective(ESTIMATORS["reinforce++"])
    sequences = sequences_of([TrainingGroup("a", (both,))], goal, discount=discount)
    assert sequences == sequences_of([TrainingGroup("a", (alone,))], goal, discount=discount)


def test_samples_say_where_an_environment_gave_rewards():
    item = episode(0, [1.0, 0.0, 2.0])
    assert [(r.place, r.reward) for r in item.samples[0].step_rewards] == [(3, 1.0), (9, 2.0)]


@pytest.mark.parametrize("name", PRESETS)
def test_without_a_discount_every_token_has_the_advantage_of_its_trajectory(name):
    group = TrainingGroup("a", (episode(0, [1.0, 1.0]), episode(1, [0.0, 1.0])))
    ((first, second),) = estimate([[2.0, 1.0]], PRESETS[name].estimator)
    results = [s.advantages for s in sequences_of([group], PRESETS[name])]
    assert results == [[first] * 4, [second] * 4]
