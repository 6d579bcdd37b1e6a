"""A step on the small model against TRL's `GRPOTrainer`: the same rollouts, rewards and weights go
into both; advantages, loss and the gradients of all parameters come out. TRL pads and computes each
sequence by itself; ours packs, and computes common beginnings once."""

import random
import warnings

import pytest
import torch
from datasets import Dataset
from msgspec import Struct, structs
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from holdfast.embedded.model.files import TINY
from holdfast.records.samples.sample import Sample, TurnSpan
from holdfast.training.batch import TrainedTrajectory, TrainingGroup, sequences_of
from holdfast.training.objective.diagnostics import Diagnostics
from holdfast.training.objective.objective import (
    PRESETS,
    Cap,
    Clip,
    Correction,
    Kl,
    Mean,
    Objective,
)
from holdfast.training.settings import TrainerSettings
from holdfast.training.trainer import Trainer

SEEDS = range(3)
GROUP, GROUPS = 4, 3
LONGEST = 24


class Rollout(Struct):
    prompt: list[int]
    reply: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None


def rollouts(seed: int, temperature: float, *, lost: bool = True) -> list[Rollout]:
    """Groups of one prompt each, with replies of unequal length; some have tokens of a tool, and
    one has no reward. Logprobs are those of the model, but for a gap of the engine."""
    chance = random.Random(seed)
    found = []
    for number in range(GROUPS):
        prompt = [chance.randrange(3, 1000) for _ in range(chance.randint(3, 12))]
        for member in range(GROUP):
            reply = [chance.randrange(3, 1000) for _ in range(chance.randint(1, LONGEST))]
            mask = [0 if 2 < place < 5 and len(reply) > 8 else 1 for place in range(len(reply))]
            reward = chance.choice([0.0, 0.5, 1.0])
            found.append(Rollout(prompt, reply, mask, [], reward))
            if lost and number == 1 and member == 2:
                found[-1].reward = None
    model = AutoModelForCausalLM.from_pretrained(TINY)
    for rollout in found:
        rollout.logprobs = [v + chance.gauss(0, 0.2) for v in scored(model, rollout, temperature)]
    return found


@torch.no_grad()
def scored(model, rollout: Rollout, temperature: float) -> list[float]:
    ids = torch.tensor([rollout.prompt + rollout.reply])
    logprobs = (model(ids).logits[0, :-1] / temperature).log_softmax(-1)
    picked = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
    return picked[len(rollout.prompt) - 1 :].tolist()


def moved(module) -> None:
    """The same small change of the weights, so that ratios are not 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            change = torch.randn(parameter.shape, generator=generator) * parameter.std()
            parameter.add_(0.02 * change)


# --- theirs


def trl_step(tmp_path, found, *, recomputed: bool, temperature: float, **options):
    """(advantages, loss, gradients)"""
    config = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(found),
        num_generations=GROUP,
        max_completion_length=LONGEST,
        temperature=temperature,
        use_cpu=True,
        bf16=False,
        report_to=[],
        gradient_checkpointing=False,
        **options,
    )
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = GRPOTrainer(
        model=str(TINY),
        args=config,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "?"}]),
        reward_funcs=lambda completions, **_: [rollout.reward for rollout in found],
        rollout_func=lambda prompts, _: {
            "prompt_ids": [rollout.prompt for rollout in found],
            "completion_ids": [rollout.reply for rollout in found],
            "logprobs": [rollout.logprobs for rollout in found],
            "env_mask": [rollout.mask for rollout in found],
        },
    )
    # With it, TRL computes old logprobs and the weights of its correction.
    trainer.use_vllm, trainer._last_loaded_step = recomputed, trainer.state.global_step
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": "?"}] * len(found))
    if not recomputed:
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    moved(trainer.model)
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    gradients = {name: p.grad for name, p in trainer.model.named_parameters()}
    return batch["advantages"].tolist(), loss.item(), gradients


# --- ours


def groups_of(found, temperature: float) -> list[TrainingGroup]:
    members = []
    for number, rollout in enumerate(found):
        start = len(rollout.prompt)
        sample = Sample(
            task=str(number // GROUP),
            group=str(number // GROUP),
            sample=number % GROUP,
            branch=0,
            status="COMPLETED",
            reason="",
            token_ids=rollout.prompt + rollout.reply,
            loss_mask=[0] * start + rollout.mask,
            logprobs=[0.0] * start + rollout.logprobs,
            version_spans=[],
            reward=rollout.reward,
            turns=[TurnSpan(start, start + len(rollout.reply), temperature, 1.0, True)],
        )
        members.append(TrainedTrajectory(str(number), rollout.reward, (sample,)))
    return [
        TrainingGroup(str(first), tuple(members[first : first + GROUP]))
        for first in range(0, len(members), GROUP)
    ]


def our_step(found, objective: Objective, *, temperature: float):
    trainer = Trainer(TINY, TrainerSettings(objective, row_tokens=100))
    assert not trainer.network.why_sequential
    groups = groups_of(found, temperature)
    sequences = trainer._sequences(groups)
    (part,) = trainer._parts(sequences)
    rows = [row for (row,) in trainer._deal(part)]
    known = trainer.computation.known_logprobs(rows)
    moved(trainer.network.module)
    loss = float(torch.as_tensor(trainer.computation.backward(rows, known, Diagnostics())).sum())
    gradients = {name: p.grad for name, p in trainer.network.module.named_parameters()}
    scored_members = [r for r in found if r.reward is not None]
    advantages = [s.advantages[0] for s in sequences_of(groups, objective)]
    assert len(advantages) == len(scored_members)
    values = iter(advantages)
    return [0.0 if r.reward is None else next(values) for r in found], loss, gradients


def compare(tmp_path, seed, objective, *, temperature=1.0, lost=True, **options):
    found = rollouts(seed, temperature, lost=lost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = trl_step(
            tmp_path,
            found,
            recomputed=objective.recompute_old,
            temperature=temperature,
            **options,
        )
    advantages, loss, gradients = our_step(found, objective, temperature=temperature)
    # TRL divides by std + 1e-4, we by std + 1e-6.
    assert advantages == pytest.approx(theirs[0], abs=2e-3)
    share = shares(found, objective)
    assert loss == pytest.approx(share * theirs[1], abs=1e-4, rel=1e-3)
    whole = torch.cat([g.flatten() for g in theirs[2].values()]).norm()
    for name, expected in theirs[2].items():
        difference = (gradients[name] - share * expected).norm() / whole
        assert difference < 1e-3, name


def shares(found, objective: Objective) -> float:
    """TRL counts a trajectory without a reward in its means, with an advantage of 0; we do not."""
    valid = [r for r in found if r.reward is not None]
    if objective.mean is Mean.TOKENS:
        return sum(sum(r.mask) for r in found) / sum(sum(r.mask) for r in valid)
    return len(found) / len(valid)


LOSSES = {
    "grpo": (PRESETS["grpo"], {"loss_type": "grpo"}),
    "dapo": (PRESETS["dapo"], {"loss_type": "dapo", "epsilon_high": 0.28}),
    "dr_grpo": (
        structs.replace(PRESETS["dr_grpo"], constant=LONGEST),
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
    # TRL's bound is of the ratio itself; ours is how far it may rise above 1.
    "cispo": (PRESETS["cispo"], {"loss_type": "cispo", "epsilon_high": 1.28}),
    "sapo": (PRESETS["sapo"], {"loss_type": "sapo"}),
    "gspo": (
        structs.replace(PRESETS["gspo"], clip=Clip(0.01, 0.02)),
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.01,
            "epsilon_high": 0.02,
        },
    ),
    "cispo with a low cap": (
        Objective(clip=Cap(1.0, 0.01), mean=Mean.TOKENS),
        {"loss_type": "cispo", "epsilon_high": 1.01},
    ),
    "dual clip": (Objective(clip=Clip(dual=1.25)), {"loss_type": "grpo", "delta": 1.25}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(tmp_path, seed, name):
    objective, options = LOSSES[name]
    compare(tmp_path, seed, objective, **options)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_temperatures(tmp_path, temperature):
    compare(tmp_path, 5, PRESETS["dapo"], temperature=temperature, epsilon_high=0.28)


CORRECTIONS = {
    "token_truncate": Correction("truncate", "token", high=1.2),
    "token_mask": Correction("mask", "token", high=1.2),
    "sequence_truncate": Correction("truncate", "sequence", high=1.3),
    "sequence_mask": Correction("mask", "sequence", high=1.3),
    "sequence_mask with a band": Correction("mask", "sequence", high=3.0, low=0.5),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections(tmp_path, seed, name):
    correction = CORRECTIONS[name]
    objective = structs.replace(PRESETS["dapo"], correction=correction, recompute_old=True)
    compare(
        tmp_path,
        seed,
        objective,
        epsilon_high=0.28,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=name.split()[0],
        vllm_importance_sampling_clip_max=correction.high,
        vllm_importance_sampling_clip_min=correction.low or None,
    )


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_stale_sequences(tmp_path, seed, recomputed):
    """Against the engine's logprobs, also where the old ones are recomputed."""
    objective = Objective(
        stale_mask=0.02,
        recompute_old=recomputed,
        correction=Correction("truncate", high=1e6) if recomputed else None,
    )
    compare(
        tmp_path,
        seed,
        objective,
        loss_type="grpo",
        off_policy_mask_threshold=0.02,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1e6,
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_divergence_from_the_reference(tmp_path, seed, weighted):
    """In TRL, a trajectory without a reward is still held to the reference; here it is not."""
    compare(
        tmp_path,
        seed,
        Objective(kl=Kl(0.5, weighted=weighted)),
        lost=False,
        loss_type="grpo",
        beta=0.5,
        use_bias_correction_kl=weighted,
    )
