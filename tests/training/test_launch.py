"""Ranks are started, or found where torchrun put them; what cannot work is refused in one line."""

import os
import sys

import pytest

pytest.importorskip("peft", reason="the extra `train`")

from holdfast.records.errors import UsageError
from holdfast.training.ranks import launch
from holdfast.training.ranks.group import RankDied, RankGroup
from holdfast.training.ranks.launch import check_ranks, open_ranks
from holdfast.training.ranks.place import TorchrunPlace, torchrun_place
from holdfast.training.run.checks import loss_file, memory_needed
from holdfast.training.settings import TrainingSettings

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def test_torchrun_is_known_by_its_environment():
    assert torchrun_place({}) is None
    assert torchrun_place(TORCHRUN) == TorchrunPlace(1, 2, 2)
    assert torchrun_place({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}) is None
    # Of another launcher, which starts something else with it.
    assert torchrun_place({"RANK": "1", "WORLD_SIZE": "2"}) is None


@pytest.mark.parametrize(
    ("size", "device", "gpus", "complaint"),
    [
        (3, "cuda", 2, "3 ranks take a GPU each, and torch sees 2 here: give --ranks 2"),
        (2, "cuda:1", 2, "is one GPU, and 2 ranks take one each"),
    ],
)
def test_ranks_that_this_machine_has_no_place_for(size, device, gpus, complaint):
    with pytest.raises(UsageError, match=complaint):
        check_ranks(size, device, gpus=gpus)


def test_ranks_that_fit():
    check_ranks(2, "cuda", gpus=2)
    check_ranks(64, "cpu", gpus=0)
    check_ranks(1, "cuda:7", gpus=0)


def test_an_older_torch_or_another_system_is_named(monkeypatch):
    monkeypatch.delattr(launch.fsdp.FSDPModule, "set_reduce_scatter_unused_params")
    with pytest.raises(UsageError, match=r"torch 2\.13 or newer"):
        check_ranks(2, "cpu", gpus=0)
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(UsageError, match="Linux"):
        check_ranks(2, "cpu", gpus=0)


def test_one_rank_starts_nothing(tmp_path):
    with open_ranks(1, "cpu", logs=tmp_path / "logs") as group:
        assert type(group) is RankGroup
        assert group.exchange(b"own") == [b"own"]
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "this is rank 1 of torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "ranks=2, and torchrun started 4"),
        ({"RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "several machines"),
    ],
)
def test_torchrun_that_does_not_fit_is_refused(tmp_path, monkeypatch, changes, complaint):
    for name, value in {**TORCHRUN, **changes}.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UsageError, match=complaint),
        open_ranks(2, "cpu", logs=tmp_path),
    ):
        pass


def test_a_rank_that_does_not_start_is_named_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "FOLLOWER", "no_such_module")
    with (
        pytest.raises(RankDied, match=r"rank 1 did not start: .*No module named no_such_module"),
        open_ranks(2, "cpu", logs=tmp_path),
    ):
        pass
    assert sys.executable in (tmp_path / "rank-1.log").read_text()


def test_ranks_are_no_part_of_a_trainings_identity():
    assert TrainingSettings(ranks=4).identity == TrainingSettings().identity
    with pytest.raises(UsageError, match="ranks"):
        TrainingSettings(ranks=0)


def test_the_memory_of_a_gpu_is_that_of_its_part():
    first, four = (TrainingSettings(device="cuda", ranks=ranks) for ranks in (1, 4))
    needed = memory_needed(10**9, first, has_engine=False)
    assert memory_needed(10**9, four, has_engine=False) == needed // 4


def test_a_loss_that_other_ranks_cannot_import_is_refused():
    assert loss_file(test_ranks_that_fit).endswith("test_launch.py:test_ranks_that_fit")
    with pytest.raises(UsageError, match="top level of a file"):
        loss_file(lambda batch, objective: None)
