"""What is refused before anything is sampled or written."""

import functools
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from msgspec import structs

from holdfast.embedded.model.files import TINY
from holdfast.engine.connect import EngineAddress
from holdfast.records.errors import UsageError
from holdfast.records.message import user
from holdfast.records.task import Task
from holdfast.training.model import memory
from holdfast.training.objective.losses import LossParts, policy_loss
from holdfast.training.objective.objective import Kl, Objective
from holdfast.training.run.checks import (
    LossFailed,
    check_device,
    check_loss,
    check_memory,
    check_model,
    check_shares,
    checked_loss,
    count_parameters,
    describe_shared,
    memory_needed,
)
from holdfast.training.settings import Lora, TrainerSettings, TrainingSettings

SMALL = TrainingSettings()
WITH_KL = TrainingSettings(trainer=TrainerSettings(objective=Objective(kl=Kl(0.1))))


# --- the model


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(TINY, tmp_path / "model")


def test_a_checkpoint_is_named_with_the_folder_of_its_models(model):
    checkpoint = model.rename(model.parent / "step-00000004")
    (checkpoint / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="is a checkpoint: give the model of a step"):
        check_model(checkpoint)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{not json", "config.json is not JSON"),
        (json.dumps({"architectures": ["BertModel"]}), "a BertModel, which is not a causal LM"),
    ],
)
def test_a_folder_of_something_else_is_named(model, config, message):
    (model / "config.json").write_text(config)
    with pytest.raises(UsageError, match=message):
        check_model(model)


def test_a_model_without_its_parts_is_named(model):
    check_model(model)
    (model / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no weights in safetensors"):
        check_model(model)
    (model / "config.json").unlink()
    with pytest.raises(UsageError, match=r"it has no config\.json"):
        check_model(model)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_weights_that_are_damaged_are_named(model, content):
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"model\.safetensors is damaged .*copy the model again"):
        check_memory(model, SMALL, EngineAddress())


# --- the machine


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "", "meta"])
def test_a_device_that_nobody_knows_is_named(name):
    with pytest.raises(UsageError, match="is none of cpu, cuda"):
        check_device(name)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    check_device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="sees no GPU on this machine; use --device cpu"):
        check_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_device("cuda:0")
    with pytest.raises(UsageError, match="this machine has 1 GPUs"):
        check_device("cuda:1")


def test_the_memory_that_is_needed_is_that_of_weights_gradients_and_optimizer():
    from transformers import AutoModelForCausalLM

    tied = AutoModelForCausalLM.from_pretrained(TINY)
    assert count_parameters(TINY) == sum(p.numel() for p in tied.parameters())
    bfloat = structs.replace(SMALL, dtype="bfloat16")
    lora = structs.replace(SMALL, lora=Lora())
    numbers = [
        memory_needed(100, settings, has_engine=False) // 100
        for settings in (SMALL, bfloat, lora, WITH_KL, structs.replace(WITH_KL, lora=Lora()))
    ]
    assert numbers == [4 + 4 + 8, 2 + 2 + 8 + 4, 4, 16 + 4, 4]
    assert memory_needed(100, SMALL, has_engine=True) == 2000


def test_too_little_memory_is_said_with_both_numbers(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9999 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(memory, "MEMORY", meminfo)
    with pytest.raises(UsageError, match=r"takes at least .* GB of memory, and 0\.0 GB are free"):
        check_memory(TINY, SMALL, EngineAddress())
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "nothing")
    check_memory(TINY, SMALL, EngineAddress())


# --- tasks


def task(name, text):
    return Task(name, (user(text),))


def test_held_out_tasks_that_are_trained_on_are_named():
    trained = [task("a", "1 + 1?"), task("b", "2 + 2?")]
    assert describe_shared(trained, [task("c", "3 + 3?")]) == ""
    text = describe_shared(trained, [task("c", "3 + 3?"), task("other", "2 + 2?")])
    assert text.startswith(
        "the trained tasks include 1 of the 2 held-out tasks (for instance 'other')"
    )
    other_answer = [Task("d", (user("2 + 2?"),), ground_truth="4, then 8")]
    assert describe_shared(trained, other_answer) == ""


# --- a loss of one's own


def parts():
    return LossParts(*[torch.zeros(1)] * 3, None)


@pytest.mark.parametrize(
    "returned", [1.0, torch.zeros(()), (torch.zeros(()), 3), (torch.zeros(2), parts())]
)
def test_a_loss_that_returns_something_else_is_named(returned):
    def mine(batch, objective):
        return returned

    with pytest.raises(LossFailed, match=r"mine has to return \(loss, parts\)"):
        checked_loss(mine)(None, None)


def test_a_loss_without_a_gradient_is_named():
    def mine(batch, objective):
        return batch.logprobs.sum().detach(), parts()

    batch = SimpleNamespace(logprobs=torch.zeros(1, requires_grad=True))
    with pytest.raises(LossFailed, match="mine returned a number without a gradient"):
        checked_loss(mine)(batch, None)


def test_a_loss_that_raises_is_named_with_its_line():
    def mine(batch, objective):
        raise ValueError("wrong")

    with pytest.raises(LossFailed, match=r"mine failed at .*test_checks\.py:\d+: ValueError") as no:
        checked_loss(mine)(None, None)
    assert 'raise ValueError("wrong")' in no.value.traceback


@pytest.mark.parametrize(
    "loss",
    [
        lambda: None,
        lambda batch: None,
        lambda batch, objective, more: None,
        lambda batch, *, objective: None,
    ],
)
def test_a_loss_that_cannot_be_called_is_refused(loss):
    with pytest.raises(UsageError, match=r"it is called as loss\(batch, objective\)"):
        check_loss(loss)


def test_a_loss_may_have_defaults_or_be_an_object():
    check_loss(lambda batch, objective, scale=1.0: None)
    check_loss(lambda *inputs: None)
    check_loss(functools.partial(lambda scale, batch, objective: None, 2.0))
    check_loss(policy_loss)


def test_a_loss_that_is_right_is_called_as_it_is():
    batch = SimpleNamespace(logprobs=torch.zeros(1, requires_grad=True))
    result = (batch.logprobs.sum(), parts())
    assert checked_loss(lambda batch, objective: result)(batch, None) is result
    assert callable(checked_loss(policy_loss))


@pytest.mark.parametrize(
    ("trainer", "engine", "fits"),
    [(10, 5, True), (60, 5, False), (10, 50, False)],
)
def test_a_gpu_that_is_too_small_for_both_shares_names_both(
    trainer: int, engine: int, fits: bool
) -> None:
    gigabyte = 10**9
    sizes = [100 * gigabyte, 95 * gigabyte, trainer * gigabyte, engine * gigabyte]
    if fits:
        check_shares(*sizes, share=0.45)
        return
    with pytest.raises(UsageError) as caught:
        check_shares(*sizes, share=0.45)
    says = str(caught.value)
    assert f"share (45 %, --engine-memory) is 45.0 GB and has to hold {engine}.0 GB" in says
    assert f"trainer's is 50.0 GB and has to hold at least {trainer}.0" in says
