"""Batches: whole groups in the order of tasks, each to one step, whatever fails."""

import pytest
from msgspec import structs

from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.message import assistant
from holdfast.records.samples.logprobs import LogprobsMode, worst
from holdfast.records.samples.sample import Sample, _Branch
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.training.advantages import estimate
from holdfast.training.batch import (
    TrainedTrajectory,
    TrainingGroup,
    check_trainable,
    sequences_of,
)
from holdfast.training.objective.objective import Objective
from holdfast.training.run.batches import (
    FUTILE_DRAWS,
    NothingRewarded,
    NothingValid,
    StepBatch,
    check_rewarded,
)
from support.training import LOST, batches_of, rolled_out


def ends(entries):
    return {entry.task: (str(entry.end), entry.step, entry.reason) for entry in entries}


def tasks_of(batch):
    return [group.task for group in batch.groups]


async def test_each_step_gets_the_next_tasks_in_their_order_and_epochs_follow():
    async with rolled_out(lambda task: [0.0, 1.0], names="abc") as (journal, consumer, stream):
        batches = batches_of(journal, consumer, stream)
        assert tasks_of(await batches.of_step(1)) == ["a", "b"]
        assert tasks_of(await batches.of_step(2)) == ["c", "a@2"]
        await journal.rewind(consumer, 0)
        again = batches_of(journal, consumer, stream)
        assert tasks_of(await again.of_step(1)) == ["a", "b"]
        assert tasks_of(await again.of_step(2)) == ["c", "a@2"]
        assert len(await journal.tasks(consumer.run)) == 4, "nothing was drawn again"


async def test_uninformative_groups_are_dismissed_and_replaced():
    def rewards(task):
        return [1.0, 1.0] if task in "ac" else [0.0, 1.0]

    async with rolled_out(rewards) as (journal, consumer, stream):
        batch = await batches_of(journal, consumer, stream, dynamic=True).of_step(1)
        assert tasks_of(batch) == ["b", "d"]
        assert [group.task for group in batch.dismissed] == ["a", "c"]
        assert (batch.drawn, batch.informative, batch.trajectories) == (4, 2, 8)
        assert sum(batch.rewards) == 6.0, "of all that was sampled"
        await journal.commit(consumer, 1)
        result = ends(await journal.ledger(consumer.run, consumer.name))
        assert result["a"] == result["c"] == ("dismissed", 1, "uninformative")
        assert result["b"] == result["d"] == ("trained", 1, "")


async def test_the_bound_of_dynamic_sampling_ends_the_search_and_the_step_gets_what_there_is():
    def rewards(task):
        return [0.0, 1.0] if task == "b" else [1.0, 1.0]

    async with rolled_out(rewards) as (journal, consumer, stream):
        batches = batches_of(journal, consumer, stream, dynamic=True, max_draws=2)
        batch = await batches.of_step(1)
        assert (tasks_of(batch), batch.drawn) == (["b"], 4)
        nothing = await batches.of_step(2)
        assert (nothing.groups, nothing.drawn) == ((), 4)
        check_rewarded(nothing, consumer.run)


async def test_a_rewind_to_before_dismissals_comes_to_the_same_batch():
    def rewards(task):
        return [1.0, 1.0] if task in "adeg" else [0.0, 1.0]

    async with rolled_out(rewards) as (journal, consumer, stream):
        batches = batches_of(journal, consumer, stream, dynamic=True)
        first = [await batches.of_step(step) for step in (1, 2)]
        await journal.rewind(consumer, 0)
        assert [await batches.of_step(step) for step in (1, 2)] == first


async def test_groups_with_too_few_valid_members_are_replaced():
    def rewards(task):
        return [LOST, 1.0] if task == "a" else [0.0, 1.0]

    async with rolled_out(rewards, at_least=2) as (journal, consumer, stream):
        batch = await batches_of(journal, consumer, stream).of_step(1)
        assert tasks_of(batch) == ["b", "c"]
        result = ends(await journal.ledger(consumer.run, consumer.name))
        assert result["a"] == ("dismissed", None, "too few valid members")


async def test_rollouts_that_all_fail_end_the_training_and_do_not_draw_for_ever():
    async with rolled_out(lambda task: [LOST, LOST]) as (journal, consumer, stream):
        with pytest.raises(NothingValid, match="holdfast report"):
            await batches_of(journal, consumer, stream).of_step(1)
        assert len(await journal.tasks(consumer.run)) == 2 * (1 + FUTILE_DRAWS)


async def test_a_lost_member_bends_no_baseline():
    lost = [1.0, 1.0, LOST, 1.0]
    async with rolled_out(lambda task: lost, samples=4) as (journal, consumer, stream):
        batch = await batches_of(journal, consumer, stream, groups=1).of_step(1)
        assert (batch.trajectories, batch.failed) == (4, 1)
        assert batch.groups[0].rewards == [1.0, 1.0, 1.0]
        advantages = [s.advantages for s in sequences_of(batch.groups, Objective())]
        assert advantages == [[0.0] * 3] * 3
        # A reward of zero in its place would have taught that the others were right.
        ((first, _, third, _),) = estimate([[1.0, 1.0, 0.0, 1.0]])
        assert (first, third) == (pytest.approx(0.5, abs=1e-3), pytest.approx(-1.5, abs=1e-3))


@pytest.mark.parametrize("dynamic", [False, True])
async def test_rewards_that_are_all_none_are_an_error(dynamic):
    async with rolled_out(lambda task: [None, None]) as (journal, consumer, stream):
        batch = await batches_of(journal, consumer, stream, dynamic=dynamic).of_step(1)
        with pytest.raises(NothingRewarded, match="give a scorer"):
            check_rewarded(batch, consumer.run)


async def test_a_sealed_run_that_has_nothing_left_is_named():
    async with rolled_out(lambda task: [0.0, 1.0]) as (journal, consumer, stream):
        batches = batches_of(journal, consumer, stream)
        await batches.of_step(1)
        await journal.seal(consumer.run)
        with pytest.raises(UsageError, match="is sealed"):
            await batches.of_step(2)


def test_the_settings_ask_for_two_valid_members_where_the_baseline_is_the_group_s():
    from holdfast.training.objective.objective import objective_named
    from holdfast.training.settings import TrainerSettings, TrainingSettings

    plain = TrainingSettings()
    other = structs.replace(
        plain, trainer=TrainerSettings(objective=objective_named("reinforce++"))
    )
    assert (plain.group_policy.at_least, other.group_policy.at_least) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, False),
        ({"stop_token_ids": (5,)}, False),
        ({"min_p": 0.1}, True),
        ({"presence_penalty": 0.5}, True),
        ({"logit_bias": ((5, 1.0),)}, True),
        ({"extra_body": '{"a":1}'}, True),
    ],
)
def test_what_was_drawn_from_another_distribution_is_not_trained(changes, is_refused):
    """Also where a rollout asks for it, which no check at the start can see."""
    step = Generated(
        "0", b"", "", 0, pack_ids([1, 2]), pack_ids([3, 4]), pack_logprobs([-1.0, -1.0]), "stop",
        (), assistant("hi"), (), "m", Sampling(**changes), logprobs_mode=LogprobsMode.PROCESSED,
    )  # fmt: skip
    branch = _Branch()
    branch.extend(step, is_shared=False)
    sample = Sample(
        task="t", group="t", sample=0, branch=0, status="COMPLETED", reason="",
        token_ids=branch.ids.tolist(), loss_mask=branch.mask.tolist(),
        logprobs=branch.logprobs.tolist(), version_spans=[], reward=1.0, turns=branch.turns,
        logprobs_mode=worst(branch.modes),
    )  # fmt: skip
    if is_refused:
        with pytest.raises(NotTrainable, match="min_p, penalties, logit_bias"):
            check_trainable(sample)
    else:
        check_trainable(sample)


def test_a_scorers_metric_is_the_mean_over_trajectories_that_have_it():
    members = [
        TrainedTrajectory(f"a/{n}", 1.0, (), metrics)
        for n, metrics in enumerate([{"format": 1.0}, {"format": 0.0, "length": 7.0}, {}])
    ]
    trained, dismissed = TrainingGroup("a", tuple(members)), TrainingGroup("b", tuple(members[:1]))
    batch = StepBatch((trained,), (dismissed,), 4, 0)
    assert batch.metrics == {"format": pytest.approx(2 / 3), "length": 7.0}
