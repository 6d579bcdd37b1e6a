"""The trainer: what its settings say of rewards reaches the tokens."""

import os
import subprocess
import sys

import pytest
import torch

from holdfast.embedded.model.files import TINY
from holdfast.records.history import History
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import EnvironmentStepped, Finished
from holdfast.records.trajectory import Status
from holdfast.training.advantages import ESTIMATORS, OverlongPenalty
from holdfast.training.batch import TrainedTrajectory, TrainingGroup
from holdfast.training.objective.objective import Kl, Objective
from holdfast.training.packing.rows import TokenSequence, pack
from holdfast.training.settings import TrainerSettings
from holdfast.training.trainer import Trainer
from support.records import generated, started

PLAIN = Objective(ESTIMATORS["dr_grpo"])


def member(number, first, second, *, status=Status.COMPLETED):
    """Two turns in an environment that gave these rewards."""
    steps = [
        generated("0", delta=(5, 6), ids=(30, 40 + number)),
        EnvironmentStepped("1", b"", "go", "seen", first, False, environment="e"),
        generated("2", base="0", keep=4, delta=(7,), ids=(50, 60 + number, 70)),
        EnvironmentStepped("3", b"", "go", "seen", second, False, environment="e"),
    ]
    reward = first + second
    history = History([started(), *steps, Finished(status, "returned", reward, 2.0)])
    samples = samples_of(history, task="a", group="a", sample=number)
    return TrainedTrajectory(f"a/{number}", reward, tuple(samples))


def advantages(settings, *members):
    trainer = Trainer(TINY, settings)
    return [list(s.advantages) for s in trainer._sequences([TrainingGroup("a", members)])]


def test_a_discount_gives_each_turn_its_own_advantage():
    members = member(0, 1.0, 0.0), member(1, 0.0, 1.0)
    assert advantages(TrainerSettings(PLAIN), *members) == [[0.0] * 5] * 2
    settings = TrainerSettings(PLAIN, discount=1.0)
    assert advantages(settings, *members) == [[0, 0, -0.5, -0.5, -0.5], [0, 0, 0.5, 0.5, 0.5]]
    trainer = Trainer(TINY, settings)
    result = trainer.step([TrainingGroup("a", members)])
    assert result.tokens == 10
    assert result.numbers["gradient_norm"] > 0
    plain = Trainer(TINY, TrainerSettings(PLAIN)).step([TrainingGroup("a", members)])
    assert plain.numbers["gradient_norm"] == 0, "nothing to learn from whole rewards"


def test_long_and_truncated_trajectories_are_treated_as_the_settings_say():
    members = member(0, 1.0, 0.0), member(1, 0.0, 0.0, status=Status.TRUNCATED)
    values = advantages(TrainerSettings(PLAIN, truncation="mask"), *members)
    assert values == [[0.5] * 5]
    # Both have five sampled tokens: the penalty is the same, and the difference stays.
    penalty = OverlongPenalty(length=6, margin=2)
    results = advantages(TrainerSettings(PLAIN, overlong=penalty), *members)
    assert results == [[0.5] * 5, [-0.5] * 5]
    alone = Objective(ESTIMATORS["reinforce++"])
    items = advantages(TrainerSettings(alone, overlong=penalty), *members)
    assert items[0] == pytest.approx([0.7071] * 5, abs=1e-3)


def test_the_divergence_is_taken_off_the_reward_before_it_is_compared():
    members = member(0, 1.0, 0.0), member(1, 0.0, 1.0)
    goal = Objective(ESTIMATORS["dr_grpo"], kl=Kl(0.1, "k1", "reward"))
    trainer = Trainer(TINY, TrainerSettings(goal))
    results = [s.advantages for s in trainer._sequences([TrainingGroup("a", members)])]
    costs = []
    for item in members:
        (sample,) = item.samples
        trained = [place for place, trains in enumerate(sample.loss_mask) if trains]
        (row,) = pack([TokenSequence(sample.token_ids, trained)], budget=100)
        with torch.no_grad():
            reference, _ = trainer.network.logprobs(row, torch.ones(len(trained)))
        recorded = torch.tensor([sample.logprobs[place] for place in trained])
        costs.append(0.1 * float((recorded - reference).sum()))
    half = (costs[1] - costs[0]) / 2
    assert results[0] == pytest.approx([half] * 5, abs=1e-4)
    assert results[1] == pytest.approx([-half] * 5, abs=1e-4)
    assert abs(half) > 1e-3


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_the_number_of_threads_does_not_depend_on_the_machines_load():
    code = (
        "import torch; from holdfast.embedded.model.files import TINY\n"
        "from holdfast.training.settings import TrainerSettings\n"
        "from holdfast.training.trainer import Trainer\n"
        "Trainer(TINY, TrainerSettings()); print('made', flush=True)\n"
        "torch.ones(64, 64) @ torch.ones(64, 64)"
    )
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "MKL_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    products = [line for line in done.stdout.partition("made\n")[2].splitlines() if "GEMM" in line]
    assert products, "MKL computes the product"
    assert all("Dyn:0" in line for line in products)
