"""Checkpoints: whole or not there, and damage is named."""

import json

import pytest
import torch

from holdfast.training import checkpoint
from holdfast.training.checkpoint import Checkpoint, CheckpointDamaged, TrainerState


def made(step):
    state = TrainerState("run", step, "abc", {"lr": 0.1}, f"v{step}", "digest")
    return Checkpoint(state, {"weights": {"w": torch.full((3,), float(step))}})


def test_what_was_saved_comes_back_and_the_last_ones_are_kept(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, made(step), keep=2)
    result, problems = checkpoint.newest(tmp_path)
    assert (result.state, problems) == (made(3).state, [])
    assert torch.equal(result.tensors["weights"]["w"], torch.full((3,), 3.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_without_checkpoints_there_is_none(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["missing", "altered", "shorter"])
def test_damage_is_named_and_the_one_before_is_taken(tmp_path, name, harm):
    for step in (1, 2):
        checkpoint.save(tmp_path, made(step), keep=5)
    file = tmp_path / "step-00000002" / name
    body = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(body[:-1] if harm == "shorter" else bytes([body[0] ^ 255]) + body[1:])
    result, (problem,) = checkpoint.newest(tmp_path)
    assert result.state.step == 1
    assert name in problem


def test_only_damaged_ones_are_an_error_and_no_beginning_anew(tmp_path):
    path = checkpoint.save(tmp_path, made(1), keep=1)
    (path / "manifest.json").write_text(json.dumps({"weights.safetensors": 1}))
    with pytest.raises(CheckpointDamaged, match=r"manifest\.json"):
        checkpoint.newest(tmp_path)


def test_what_a_kill_left_aside_is_no_checkpoint_and_is_cleared_away(tmp_path):
    aside = tmp_path / ".partial-step-00000002"
    aside.mkdir()
    (aside / "weights.safetensors").write_bytes(b"half")
    assert checkpoint.newest(tmp_path) is None
    checkpoint.save(tmp_path, made(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
