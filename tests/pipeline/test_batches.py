"""Paced batches: admitted in time, trained in the order of admission, whatever is slow or fails."""

import asyncio
from collections import Counter

import pytest

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.journal.types import GroupEnd
from holdfast.pipeline.batches import PacedBatches
from holdfast.pipeline.settings import PipelineSettings
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import WaitTimedOut
from holdfast.testing import run_in_virtual_time
from holdfast.training.objective.objective import objective_named
from holdfast.training.run.batches import NothingValid
from holdfast.training.settings import TrainingSettings
from support.pipeline import TURNS, Durations, Simulation
from support.records import consuming, joined, make_tasks, spec


def simulate(rollout, *, pipeline=None, tasks: int = 40, step: float = 30.0, **options):
    """(the simulation at its end, its ledger, seconds)"""
    known = {"is_lost", "at_least", "slots"}
    settings = {name: options.pop(name) for name in known & options.keys()}
    training = TrainingSettings.of(**({"groups": 2, "samples": 2, "steps": 5} | options))

    async def body():
        simulation = Simulation(
            Durations(rollout, step=step),
            training=training,
            pipeline=pipeline,
            tasks=tasks,
            **settings,
        )
        await simulation.work()
        return simulation, await simulation.ledger()

    (simulation, ledger), seconds = run_in_virtual_time(body())
    return simulation, ledger, seconds


def even(task: str, sample: int) -> float:
    return 30.0


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_sample_is_as_old_as_it_may_be_where_training_is_slow_and_no_older(staleness):
    paced = PipelineSettings(max_staleness=staleness)
    simulation, ledger, _ = simulate(even, pipeline=paced, step=300.0)
    assert simulation.most_open == (staleness + 1) * 2
    assert list(simulation.saved.lags.values()) == [min(k, staleness) for k in range(5)]
    assert Counter(entry.step for entry in ledger) == dict.fromkeys(range(1, 6), 2)
    assert simulation.turns_sampled == 5 * 2 * 2 * TURNS, "what no step needs is not sampled"


def test_a_staleness_of_0_has_the_batches_of_one_thing_after_the_other():
    plain, _, seconds = simulate(even)
    paced, _, as_long = simulate(even, pipeline=PipelineSettings(max_staleness=0))
    assert plain.saved.batches == paced.saved.batches
    assert as_long == pytest.approx(seconds, rel=0.05)


def test_both_sides_are_busy_at_once():
    _, _, one_after_the_other = simulate(even, steps=20)
    _, _, at_once = simulate(even, steps=20, pipeline=PipelineSettings(max_staleness=1))
    assert one_after_the_other > 1.6 * at_once


def test_a_slow_task_is_waited_for_and_not_starved():
    def rollout(task: str, sample: int) -> float:
        return 500.0 if task == "t0" else 10.0

    simulation, _, _ = simulate(rollout, pipeline=PipelineSettings(max_staleness=1))
    assert simulation.saved.batches[1] == ["t0", "t1"]
    assert max(simulation.saved.lags.values()) <= 1


def straggling(task: str, sample: int) -> float:
    return 900.0 if task == "t1" else 10.0


def test_a_straggler_is_passed_by_counted_and_trained():
    paced = PipelineSettings(max_staleness=1, straggler_seconds=20.0)
    simulation, ledger, _ = simulate(straggling, pipeline=paced, steps=20)
    assert simulation.saved.batches[1] == ["t0", "t2"]
    (entry,) = [entry for entry in ledger if entry.task == "t1"]
    assert (entry.end, entry.step) == (GroupEnd.TRAINED, 20)
    assert sum(b.numbers["groups_too_old"] for b in simulation.batches.values()) == 1
    assert sum(b.numbers["tokens_unused"] for b in simulation.batches.values()) == 0


def test_what_is_too_old_is_dismissed_with_its_reason_where_that_is_wanted():
    paced = PipelineSettings(max_staleness=1, straggler_seconds=20.0, too_old="dismiss")
    simulation, ledger, _ = simulate(straggling, pipeline=paced, steps=60, tasks=200)
    (entry,) = [entry for entry in ledger if entry.task == "t1"]
    assert (entry.end, entry.reason) == (GroupEnd.DISMISSED, "too old")
    assert entry.step is not None
    batch = simulation.batches[entry.step]
    assert [group.task for group in batch.dismissed] == ["t1"]
    assert len(batch.groups) == 2, "it was replaced"
    assert (batch.numbers["tokens_unused"], batch.numbers["length_dismissed"]) == (12, 6)
    assert batch.numbers["length"] == 6


def test_groups_with_too_few_valid_members_are_replaced_and_never_trained():
    def is_lost(task: str, sample: int) -> bool:
        return task in ("t1", "t4")

    paced = PipelineSettings(max_staleness=1)
    simulation, ledger, _ = simulate(even, pipeline=paced, is_lost=is_lost, at_least=2)
    assert simulation.saved.batches[1] == ["t0", "t2"]
    reasons = {entry.task: entry.reason for entry in ledger if entry.end is GroupEnd.DISMISSED}
    assert reasons == dict.fromkeys(("t1", "t4"), "too few valid members")
    assert sum(map(len, simulation.saved.batches.values())) == 10


def test_rollouts_that_all_fail_end_the_training_with_the_reason():
    with pytest.raises(NothingValid, match="groups in a row had too few valid members"):
        simulate(even, pipeline=PipelineSettings(), is_lost=lambda task, sample: True, at_least=2)


def test_a_stream_that_ends_gives_what_is_left_and_then_its_end():
    paced = PipelineSettings(max_staleness=1, epochs=1)
    simulation, ledger, _ = simulate(even, pipeline=paced, tasks=5, steps=9)
    assert [len(names) for names in simulation.saved.batches.values()] == [2, 2, 1]
    assert {entry.end for entry in ledger} == {GroupEnd.TRAINED}


def test_uninformative_groups_are_dismissed_and_replaced():
    """With one sample, every group is uninformative: each step draws what it may, and goes on."""
    objective = objective_named("reinforce++")
    paced = PipelineSettings(max_staleness=1)
    simulation, ledger, _ = simulate(
        even, pipeline=paced, objective=objective, dynamic=True, samples=1, steps=3, max_draws=2
    )
    drawn = [batch.drawn for batch in simulation.batches.values()]
    assert drawn == [4, 4, 4]
    assert {entry.reason for entry in ledger if entry.end is GroupEnd.DISMISSED} == {
        "uninformative"
    }


def test_a_step_waits_for_rollouts_only_while_somebody_samples_them():
    """A rollouter that hangs renews no lease; one that is slow does."""

    async def body():
        journal = MemoryJournal()
        run = await journal.create_run(spec(samples=2), (), sealed=False)
        consumer = await consuming(journal, run)
        worker = await joined(journal, run)
        batches = PacedBatches(
            journal,
            consumer,
            EpochStream(make_tasks("a", "b"), seed=0, shuffle=False),
            training=TrainingSettings.of(groups=2, samples=2, steps=5),
            pipeline=PipelineSettings(),
            tasks=2,
            rollout_patience=60.0,
        )
        waiting = asyncio.create_task(batches.of_step(1))
        await asyncio.sleep(400.0)
        assert not waiting.done()
        left = asyncio.get_running_loop().time()
        await journal.leave(worker)
        with pytest.raises(
            WaitTimedOut, match=r"waited 6. s for rollouts of run 'run': nobody samples"
        ):
            await waiting
        return asyncio.get_running_loop().time() - left

    seconds, _ = run_in_virtual_time(body())
    assert 60.0 <= seconds < 63.0
