"""Our tables of arguments against the frameworks themselves: none of theirs is missing.

slime and NeMo-RL are not on PyPI: `HOLDFAST_SLIME_SOURCE` and `HOLDFAST_NEMO_SOURCE` name clones.
"""

import ast
import os
from dataclasses import fields
from pathlib import Path

import pytest
import verl
from omegaconf import OmegaConf
from transformers import TrainingArguments
from trl import GRPOConfig
from trl.experimental.async_grpo import AsyncGRPOConfig
from verl.workers.config import RolloutConfig

from holdfast.trl.arguments import TRL
from holdfast.verl.arguments import SECTIONS, VERL


@pytest.mark.parametrize("config", [GRPOConfig, AsyncGRPOConfig])
def test_every_argument_of_trl_has_a_class(config):
    inherited = {field.name for field in fields(TrainingArguments)}
    assert {field.name for field in fields(config)} - inherited <= TRL.names


def test_every_setting_of_verl_has_a_class():
    folder = Path(verl.__file__).parent / "trainer" / "config"
    config = OmegaConf.to_container(OmegaConf.load(folder / "_generated_ppo_trainer.yaml"))
    leaves = {name for part in SECTIONS for name in VERL.section(config, part)}
    assert leaves
    assert {name for name in leaves if not _is_known(name)} == set()
    declared = [field.name for field in fields(RolloutConfig) if not field.name.startswith("_")]
    names = {f"actor_rollout_ref.rollout.{name}" for name in declared}
    assert {name for name in names if not _is_known(name)} == set()


def _is_known(name):
    return name in VERL.names or any(known.startswith(f"{name}.") for known in VERL.names)


def source(variable, *parts):
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no clone")
    return ast.parse(Path(folder, *parts).read_text())


def test_every_argument_of_slime_has_a_class(monkeypatch):
    monkeypatch.syspath_prepend(os.environ.get("HOLDFAST_SLIME_SOURCE", ""))
    tree = source("HOLDFAST_SLIME_SOURCE", "slime", "utils", "arguments.py")
    from holdfast.slime.arguments import EVALUATION, SLIME

    options = {
        next((k.value.value for k in call.keywords if k.arg == "dest"), None)
        or next(a.value for a in call.args if isinstance(a, ast.Constant))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and getattr(call.func, "attr", getattr(call.func, "id", ""))
        in ("add_argument", "reset_arg")
        and any(isinstance(a, ast.Constant) for a in call.args)
    }
    assert {option.lstrip("-").replace("-", "_") for option in options} - SLIME.names == set()
    tree = source("HOLDFAST_SLIME_SOURCE", "slime", "utils", "eval_config.py")
    assert declared(tree, "EvalDatasetConfig") - EVALUATION.names == set()


def test_every_setting_of_nemo_has_a_class(monkeypatch):
    monkeypatch.syspath_prepend(os.environ.get("HOLDFAST_NEMO_SOURCE", ""))
    tree = source("HOLDFAST_NEMO_SOURCE", "nemo_rl", "algorithms", "grpo.py")
    from holdfast.nemo.arguments import NEMO

    known = NEMO.names | {name.rpartition(".")[0] for name in NEMO.names}
    sections = {
        "GRPOConfig": "grpo",
        "AsyncGRPOConfig": "grpo.async_grpo",
        "RewardScalingConfig": "grpo.reward_scaling",
        "RewardPenaltyConfig": "reward_penalties",
    }
    settings = {f"{at}.{name}" for each, at in sections.items() for name in declared(tree, each)}
    tree = source("HOLDFAST_NEMO_SOURCE", "nemo_rl", "models", "generation", "interfaces.py")
    settings |= {
        f"policy.generation.{name}"
        for name in declared(tree, "GenerationConfig")
        if not name.startswith("_")
    }
    assert settings - known == set()


def declared(tree, name):
    """The fields of a class."""
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    return {line.target.id for line in found.body if isinstance(line, ast.AnnAssign)}
