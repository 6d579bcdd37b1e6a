"""Hours of training in virtual time: outages, stragglers, restarts, and the bound holds.

The pool, the pacing and the ledger are the real ones; rolling out and training take the time that
the test says. A kill is a cancellation at any await, after which nothing of the side is left.
"""

import asyncio
import random

import pytest

from holdfast.journal.types import GroupEnd
from holdfast.pipeline.settings import PipelineSettings
from holdfast.testing import run_in_virtual_time
from holdfast.training.settings import TrainingSettings
from support.exhaustive import points
from support.pipeline import TURNS, Durations, Simulation, long_tailed

HOUR = 3600.0


def settings(**options: object) -> TrainingSettings:
    return TrainingSettings.of(**({"groups": 4, "samples": 2, "steps": 12} | options))  # type: ignore[arg-type]


async def disturb(simulation: Simulation, chance: random.Random) -> None:
    """For ever."""
    while True:
        await asyncio.sleep(chance.expovariate(1 / 400))
        match chance.randrange(4):
            case 0:
                simulation.kill_trainer()
            case 1:
                simulation.kill_rollouter()
            case 2:
                await simulation.outage(chance.uniform(1, 900))
            case _:
                simulation.kill_trainer()
                simulation.kill_rollouter()


async def disturbed(simulation: Simulation, chance: random.Random) -> None:
    trouble = asyncio.create_task(disturb(simulation, chance))
    try:
        await simulation.work()
    finally:
        trouble.cancel()
        await asyncio.wait({trouble})


async def check_ends(simulation: Simulation) -> None:
    entries = await simulation.ledger()
    assert {entry.end for entry in entries} == {GroupEnd.TRAINED}
    in_steps = {name: step for step, names in simulation.saved.batches.items() for name in names}
    assert {entry.task: entry.step for entry in entries} == in_steps, "each once, as in the weights"
    assert sum(map(len, simulation.saved.batches.values())) == len(in_steps)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", range(0, points(8, 1000), 8))
def test_whatever_happens_each_group_is_trained_once_and_none_is_too_old(seeds: int) -> None:
    for seed in range(seeds, seeds + 8):
        chance = random.Random(seed)
        staleness = chance.randrange(4)
        training = settings(checkpoint_every=chance.choice([1, 1, 2]))
        paced = PipelineSettings(max_staleness=staleness, straggler_seconds=1e9)

        async def body(
            training: TrainingSettings = training,
            paced: PipelineSettings = paced,
            chance: random.Random = chance,
            seed: int = seed,
        ) -> Simulation:
            durations = Durations(long_tailed(seed), step=chance.choice([3.0, 30.0, 300.0]))
            simulation = Simulation(durations, training=training, pipeline=paced)
            await disturbed(simulation, chance)
            await check_ends(simulation)
            return simulation

        simulation, seconds = run_in_virtual_time(body())
        assert seconds < 100 * HOUR, f"seed {seed}: nothing hangs"
        # Steps that were lost with a trainer take the engines back: what was in flight is older.
        lost = training.checkpoint_every - 1
        assert max(simulation.saved.lags.values()) <= staleness + lost, f"seed {seed}"
        trained = training.trainer.steps * training.groups
        assert simulation.turns_sampled >= trained * training.samples * TURNS
        if training.checkpoint_every == 1:
            assert simulation.most_open <= (staleness + 1) * training.groups, f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_stragglers_are_passed_by_and_trained_when_they_come(seed: int) -> None:
    """A rollout of forty minutes among those of one: steps go on, and it is in one of them."""

    def duration(task: str, sample: int) -> float:
        return 2400.0 if task in ("t1", "t6") else 60.0

    async def body() -> Simulation:
        paced = PipelineSettings(max_staleness=1, straggler_seconds=120.0)
        simulation = Simulation(
            Durations(duration, step=30.0), training=settings(steps=30), pipeline=paced, tasks=200
        )
        await (disturbed(simulation, random.Random(seed)) if seed else simulation.work())
        await check_ends(simulation)
        return simulation

    simulation, _ = run_in_virtual_time(body())
    old = sum(batch.numbers["groups_too_old"] for batch in simulation.batches.values())
    assert old >= 1, "it was counted"
    steps = {name: step for step, names in simulation.saved.batches.items() for name in names}
    assert steps["t1"] > 3
    assert steps["t2"] <= 3


@pytest.mark.parametrize(
    ("rollout", "step"),
    [pytest.param(300.0, 30.0, id="slow rollouts"), pytest.param(30.0, 300.0, id="slow training")],
)
def test_one_side_ten_times_slower_leaves_nothing_too_old_and_drops_nothing(
    rollout: float, step: float
) -> None:
    """Long trajectories are trained in the share in which they were admitted."""

    def duration(task: str, sample: int) -> float:
        return rollout * (4.0 if int(task[1:]) % 4 == 0 else 0.5)

    async def body() -> Simulation:
        paced = PipelineSettings(max_staleness=2, straggler_seconds=1e9)
        simulation = Simulation(
            Durations(duration, step=step), training=settings(steps=20), pipeline=paced, tasks=400
        )
        await simulation.work()
        await check_ends(simulation)
        return simulation

    simulation, _ = run_in_virtual_time(body())
    assert max(simulation.saved.lags.values()) <= 2
    trained = [name for names in simulation.saved.batches.values() for name in names]
    assert len(trained) == 80
    assert sum(int(name[1:]) % 4 == 0 for name in trained) == 20
    assert simulation.turns_sampled == 80 * 2 * TURNS, "no token was sampled and not used"
