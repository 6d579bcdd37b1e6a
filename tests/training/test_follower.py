"""Another rank does what rank 0 says; when it cannot, rank 0 says why."""

import os
import signal
import threading

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch

from holdfast.embedded.model.files import TINY
from holdfast.records.errors import UsageError
from holdfast.training.model import network
from holdfast.training.ranks.group import RankDied
from holdfast.training.run.checks import checked_loss, loss_file
from holdfast.training.settings import OptimizerSettings, TrainerSettings
from holdfast.training.trainer import Trainer
from support.embedded import tiny_models
from support.ranks import joined
from support.training_groups import groups_of

SETTINGS = TrainerSettings(optimizer=OptimizerSettings(learning_rate=1e-3), row_tokens=40)
HALVED = """
import os
from holdfast.training.objective.losses import policy_loss

def loss(batch, objective):
    found, parts = policy_loss(batch, objective)
    return found / 2, parts

def fails(batch, objective):
    if os.getpid() != {leader}:
        raise ValueError("no such loss")
    return policy_loss(batch, objective)
"""


@pytest.fixture
def own(tmp_path):
    """A module of the user's."""
    from holdfast.rollout.code.load import load_module

    path = tmp_path / f"own_{tmp_path.name}.py"
    path.write_text(HALVED.format(leader=os.getpid()))
    return load_module(path)


def with_loss(loss, ranks):
    checked = checked_loss(loss)
    return Trainer(TINY, SETTINGS, loss=checked, loss_file=loss_file(loss), ranks=ranks)


def pid_of(ranks, rank):
    return int(ranks._store.get(f"pid/{rank}"))


def test_a_loss_of_your_own_is_that_of_all_ranks(tmp_path, own):
    with joined(2, tmp_path) as ranks:
        result = with_loss(own.loss, ranks).step(groups_of(3))
        plain = Trainer(TINY, SETTINGS, ranks=ranks).step(groups_of(3))
    assert result.loss == pytest.approx(plain.loss / 2, rel=1e-4, abs=1e-6)
    assert result.numbers["gradient_norm"] == pytest.approx(
        plain.numbers["gradient_norm"] / 2, rel=1e-3
    )
    assert not torch.distributed.is_initialized()


def test_what_fails_on_another_rank_is_what_the_training_ends_with(tmp_path, own):
    with joined(2, tmp_path) as ranks:
        trainer = with_loss(own.fails, ranks)
        with pytest.raises(
            RankDied, match=r"rank 1 of 2 has ended: the loss fails failed .*no such"
        ):
            trainer.step(groups_of(3))
        with pytest.raises(RankDied, match="rank 1 of 2"):
            trainer.weights()


def test_a_rank_that_is_killed_is_noticed_while_nobody_waits_for_it(tmp_path):
    with joined(2, tmp_path) as ranks:
        died = threading.Event()
        ranks.on_death(died.set)
        os.kill(pid_of(ranks, 1), signal.SIGKILL)
        assert died.wait(60)
        with pytest.raises(RankDied, match="rank 1 of 2 has ended: killed by SIGKILL"):
            ranks.check_alive()


def test_the_rank_that_died_first_is_the_cause_and_not_those_that_end_with_it(tmp_path):
    with joined(3, tmp_path) as ranks:
        died = threading.Event()
        ranks.on_death(died.set)
        os.kill(pid_of(ranks, 2), signal.SIGKILL)
        assert died.wait(60)
        with pytest.raises(RankDied, match="rank 2 of 3 has ended: killed by SIGKILL"):
            ranks.check_alive()


def test_ranks_that_see_other_files_are_refused(tmp_path, monkeypatch):
    model, other = (tiny_models.llama(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    real = network.load_model
    monkeypatch.setattr(network, "load_model", lambda folder, dtype: real(other, dtype))
    with (
        joined(2, tmp_path) as ranks,
        pytest.raises(UsageError, match=r"the weights in .*: rank 1 has"),
    ):
        Trainer(model, SETTINGS, ranks=ranks)
