"""The gap between engine and trainer: who is wrong is found out by the model's own forward pass."""

import asyncio
import json
import shutil
from contextlib import asynccontextmanager, contextmanager

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch
from msgspec import structs

from holdfast.embedded.model.files import TINY
from holdfast.embedded.model.load import load
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.samples.sample import Sample, TurnSpan
from holdfast.records.step import VersionSpan
from holdfast.training.batch import TrainingGroup, group_samples
from holdfast.training.model import trial
from holdfast.training.model.plain import load_model, logprobs_of
from holdfast.training.packing.rows import TokenSequence
from holdfast.training.run.batches import StepBatch
from holdfast.training.run.gap import GapTooWide, GapWatch
from holdfast.training.settings import OnGap, TrainerSettings, TrainingSettings
from holdfast.training.trainer import Trainer
from holdfast.weights.version import WeightFolder
from support.architectures import make_model
from support.embedded.client import TOKEN, serving

FLOAT32 = TrainingSettings(trainer=TrainerSettings(row_tokens=400))
BFLOAT16 = structs.replace(FLOAT32, dtype="bfloat16")
PROMPT = 5
LENGTH = 150


def recorded(folder, *, dtype=torch.float32, off=0.0, version="step-0", members=3):
    """A group that an engine has sampled which computes as transformers does, `off` by that."""
    module = load_model(folder, dtype)
    samples = []
    for member in range(members):
        ids = [(7919 * n + 31 * member + 5) % 500 + 3 for n in range(LENGTH)]
        sequence = TokenSequence(ids, list(range(PROMPT, LENGTH)))
        logprobs = [min(value - off, 0.0) for value in logprobs_of(module, sequence)]
        samples.append(
            Sample(
                task="a", group="a", sample=member, branch=0, status="COMPLETED", reason="",
                token_ids=ids, loss_mask=[0] * PROMPT + [1] * (LENGTH - PROMPT),
                logprobs=[0.0] * PROMPT + logprobs, reward=float(member),
                version_spans=[VersionSpan(version, PROMPT, LENGTH)],
                turns=[TurnSpan(PROMPT, LENGTH, 1.0, 1.0, True)],
            )
        )  # fmt: skip
    return group_samples(samples)


def checked(folder, groups: list[TrainingGroup], *, settings=FLOAT32, dtypes=("float32",)):
    """What a watch says of a step on these groups, trained by a real trainer."""
    lines: list[str] = []
    trainer = Trainer(folder, settings.trainer, dtype=getattr(torch, settings.dtype))
    gap = trainer.step(groups, version="step-0").numbers.get("gap_mean")
    watch = GapWatch(settings, report=lines.append)
    version = WeightFolder("step-0", folder, "")
    batch = StepBatch(tuple(groups), (), 3, 0)
    for step in (1, 2):
        watch.check(step, gap, batch, version=version, dtypes=dtypes)
    return gap, lines


def test_an_engine_that_agrees_is_silent():
    gap, lines = checked(TINY, recorded(TINY))
    assert gap < 1e-4
    assert lines == []


def test_an_engine_that_computes_something_else_is_named():
    with pytest.raises(GapTooWide) as caught:
        checked(TINY, recorded(TINY, off=0.3))
    assert caught.match("step 1: the logprobs of engine and trainer are 0.3 nats apart on average")
    assert caught.match("float32 explains 0.001: the engine is wrong: .*the engine is off by mean")
    assert caught.match("Nothing of it is saved; --on-gap warn trains on all the same$")


def test_a_trainer_that_computes_something_else_is_named(tmp_path, monkeypatch):
    """A window that the trial was too short for."""
    folder = make_model("qwen2-moe-window", tmp_path)
    monkeypatch.setitem(trial.WORK, "cpu", 1.0)
    with pytest.raises(GapTooWide, match=r"explains 0\.001: the trainer is wrong: "):
        checked(folder, recorded(folder))


def test_warned_of_once_training_goes_on():
    settings = structs.replace(FLOAT32, on_gap=OnGap.WARN)
    _, lines = checked(TINY, recorded(TINY, off=0.3), settings=settings)
    assert len(lines) == 1
    assert "the engine is wrong" in lines[0]
    assert lines[0].endswith("training goes on (--on-gap warn)")


def test_rounding_that_is_wide_is_let_pass_by_the_judge(tmp_path):
    """Two roundings to bfloat16 of a model whose tokens are very unlikely."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8.0)
    model.save_pretrained(tmp_path)
    groups = recorded(tmp_path, dtype=torch.bfloat16)
    gap, lines = checked(tmp_path, groups, settings=FLOAT32, dtypes=("bfloat16",))
    assert gap > 0.1
    assert len(lines) == 1
    assert "is rounding: neither is wrong" in lines[0]


def test_tokens_of_other_weights_are_not_in_the_gap():
    fresh, stale = recorded(TINY), recorded(TINY, off=0.5, version="step-7")
    trainer = Trainer(TINY, FLOAT32.trainer)
    numbers = trainer.step([*fresh, structs.replace(stale[0], task="b")], version="step-0").numbers
    assert numbers["gap_max"] < 1e-3
    assert "gap_mean" not in Trainer(TINY, FLOAT32.trainer).step(stale, version="step-0").numbers


def test_a_later_update_of_a_step_is_not_in_the_gap():
    groups = [structs.replace(group, task=name) for name in "ab" for group in recorded(TINY)]
    settings = TrainerSettings(updates=2, row_tokens=400)
    settings = structs.replace(
        settings, optimizer=structs.replace(settings.optimizer, learning_rate=0.03)
    )
    assert Trainer(TINY, settings).step(groups, version="step-0").numbers["gap_max"] < 1e-3


@contextmanager
def served(tmp_path, *, is_other):
    """An engine whose encoding of positions may be another."""
    folder = tmp_path / "served"
    shutil.copytree(TINY, folder)
    if is_other:
        config = json.loads((TINY / "config.json").read_text())
        config["rope_parameters"]["rope_theta"] = 1e6
        (folder / "config.json").write_text(json.dumps(config))
    with DecodeEngine(load(folder), version="step-0") as engine:
        yield engine


@asynccontextmanager
async def connected(engine):
    async with serving(engine) as client:
        policy = EnginePolicy(str(client.session._base_url).rstrip("/"), "tiny", api_key=TOKEN)
        await policy.check()
        try:
            yield policy
        finally:
            await policy.aclose()


@pytest.mark.parametrize("is_other", [False, True], ids=["the same", "another"])
def test_an_engine_with_another_encoding_of_positions_is_refused_at_long_lengths(
    tmp_path, is_other
):
    trainer = Trainer(TINY, TrainerSettings(row_tokens=1024))

    async def compare(engine):
        async with connected(engine) as policy:
            await GapWatch(FLOAT32, report=print).compare(policy, trainer, ["float32"])

    with served(tmp_path, is_other=is_other) as engine:
        if not is_other:
            asyncio.run(compare(engine))
            return
        with pytest.raises(GapTooWide, match=r"after 256 to 512 tokens: .*the engine is wrong"):
            asyncio.run(compare(engine))


async def numbers_of_step(engine, *, has="step-0", sampled_by="step-7"):
    """The numbers of a step that is trained from step-0 on tokens of other weights."""
    trainer, version = Trainer(TINY, FLOAT32.trainer), WeightFolder("step-0", TINY, "")
    batch = StepBatch(tuple(recorded(TINY, version=sampled_by, members=9)), (), 9, 0)
    watch = GapWatch(FLOAT32, report=print)
    async with connected(engine) as policy:
        policy.endpoints[0].weights = has
        questions = await watch.questions(batch, trainer, version=version)
        return await watch.ask(3, questions, policy, version=version, dtypes=["float32"])


def test_engines_are_asked_where_the_weights_that_are_trained_sampled_nothing(tmp_path):
    with served(tmp_path, is_other=False) as engine:
        numbers = asyncio.run(numbers_of_step(engine))
        assert 0 < numbers["asked_gap_mean"] <= numbers["asked_gap_max"] < 1e-4
        assert asyncio.run(numbers_of_step(engine, sampled_by="step-0")) == {}, "its tokens show it"
        assert asyncio.run(numbers_of_step(engine, has="step-1")) == {}, "it has other weights"


def test_an_engine_that_is_wrong_at_the_lengths_of_a_step_is_named_though_rollouts_run_ahead(
    tmp_path,
):
    with served(tmp_path, is_other=True) as engine, pytest.raises(GapTooWide) as caught:
        asyncio.run(numbers_of_step(engine))
    assert caught.match(r"step 3: the logprobs .* apart on average, .*: the engine is wrong: ")
    assert caught.match("over 16 tokens")
