"""Advantages, losses, gradients and corrections against verl's `core_algos`."""

import numpy as np
import pytest
import torch
from cases import SEEDS, Case
from msgspec import structs
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import (
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.workers.config import ActorConfig

from holdfast.training.advantages import ESTIMATORS, estimate
from holdfast.training.objective.losses import kl_estimate, policy_loss
from holdfast.training.objective.objective import (
    PRESETS,
    Cap,
    Clip,
    Correction,
    Gate,
    KlEstimate,
    Level,
    Mean,
    Objective,
)

MEANS = {
    Mean.TOKENS: "token-mean",
    Mean.TRAJECTORIES: "seq-mean-token-mean",
    Mean.CONSTANT: "seq-mean-token-sum-norm",
}
CONSTANT = 12
NEVER = 1e9
"""verl's dual clip is always there; so high, it does nothing."""


# --- advantages


def theirs(case, estimator, **options):
    rewards = torch.zeros_like(case.mask)
    rewards[:, 0] = torch.tensor(case.flat_rewards, dtype=torch.float64)
    found, _ = core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=rewards.clone(),
        response_mask=case.mask,
        index=np.array(case.groups),
        config=AlgoConfig(gamma=1.0),
        **options,
    )
    return found[:, 0].tolist()


def ours(case, estimator):
    return [value for group in estimate(case.rewards, ESTIMATORS[estimator]) for value in group]


def in_groups_of_several(case, values):
    """Without groups of one: verl takes the reward itself there, and we 0."""
    alone = {number for number, group in enumerate(case.rewards) if len(group) == 1}
    return [v for v, group in zip(values, case.groups, strict=True) if group not in alone]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "estimator", "options"),
    [
        ("grpo", "grpo", {"norm_adv_by_std_in_grpo": True}),
        ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "rloo", {}),
    ],
)
def test_advantages_over_groups(seed, name, estimator, options):
    case = Case(seed)
    found = in_groups_of_several(case, ours(case, name))
    expected = in_groups_of_several(case, theirs(case, estimator, **options))
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_advantages_over_the_batch(seed):
    """verl's mean is over tokens, ours over trajectories: the same where each has one token."""
    case = Case(seed, one_token=True)
    expected = theirs(case, "reinforce_plus_plus")
    assert ours(case, "reinforce++") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_advantages_over_the_batch_against_the_group(seed):
    case = Case(seed, one_token=True)
    # A group of one has a reward of 0, which is its advantage there, too; others are not equal.
    case.rewards = [
        [reward + 0.1 * place for place, reward in enumerate(group)] if len(group) > 1 else [0.0]
        for group in [*case.rewards, [0.0, 1.0]]
    ]
    case.groups += [len(case.rewards) - 1] * 2
    case.mask = torch.ones(len(case.groups), 1, dtype=torch.float64)
    expected = theirs(case, "reinforce_plus_plus_baseline")
    assert ours(case, "reinforce++-baseline") == pytest.approx(expected, abs=1e-4)


# --- losses


def actor(clip):
    bounds = {"clip_ratio_c": NEVER}
    if isinstance(clip, Clip | Cap):
        bounds |= {"clip_ratio_low": clip.low, "clip_ratio_high": clip.high}
        if isinstance(clip, Clip) and clip.dual is not None:
            bounds["clip_ratio_c"] = clip.dual
    if isinstance(clip, Gate):
        bounds |= {"tau_pos": clip.positive, "tau_neg": clip.negative}
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **bounds)
    config.global_batch_info["loss_scale_factor"] = CONSTANT
    return config


def compare(case, objective, name, *, weights=None, recomputed=False):
    """Loss and gradients of both."""
    logprobs = case.new.clone().requires_grad_()
    loss, _ = policy_loss(case.flat(objective, logprobs, recomputed=recomputed), objective)
    other = case.new.clone().requires_grad_()
    expected, _ = core_algos.get_policy_loss_fn(name)(
        old_log_prob=case.old,
        log_prob=other,
        advantages=case.advantages * case.mask,
        response_mask=case.mask,
        loss_agg_mode=MEANS[objective.mean],
        config=actor(objective.clip),
        rollout_is_weights=weights,
    )
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-8)
    (found,) = torch.autograd.grad(loss, logprobs)
    (exact,) = torch.autograd.grad(expected, other)
    torch.testing.assert_close(found * case.mask, exact * case.mask, rtol=1e-6, atol=1e-8)
    assert weights is not None or exact.abs().sum() > 0


VANILLA = {
    "grpo": PRESETS["grpo"],
    "dapo": PRESETS["dapo"],
    "dr_grpo": structs.replace(PRESETS["dr_grpo"], constant=CONSTANT),
    "dual clip": Objective(clip=Clip(dual=1.3)),
    "reinforce++": PRESETS["reinforce++"],
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", VANILLA)
def test_the_two_sided_clip(seed, name):
    compare(Case(seed), VANILLA[name], "vanilla")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mean", MEANS)
def test_gspo(seed, mean):
    constant = CONSTANT if mean is Mean.CONSTANT else None
    wide = structs.replace(PRESETS["gspo"], clip=Clip(0.1, 0.2), mean=mean, constant=constant)
    compare(Case(seed), wide, "gspo")


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_with_advantages_that_differ_from_turn_to_turn(seed):
    case = Case(seed)
    case.advantages = torch.randn_like(case.mask)
    compare(case, structs.replace(PRESETS["gspo"], clip=Clip(0.1, 0.2)), "gspo")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["cispo", "sapo"])
def test_cispo_and_sapo(seed, name):
    compare(Case(seed), PRESETS[name], name)


@pytest.mark.parametrize("kind", KlEstimate)
@pytest.mark.parametrize("seed", SEEDS)
def test_estimates_of_the_divergence(seed, kind):
    case = Case(seed)
    logprobs, other = case.new.clone().requires_grad_(), case.new.clone().requires_grad_()
    found = kl_estimate(logprobs, case.reference, kind)
    expected = core_algos.kl_penalty(other, case.reference, str(kind))
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    (exact,) = torch.autograd.grad(expected.sum(), other)
    torch.testing.assert_close(gradient, exact)


# --- the gap between engine and trainer

CORRECTIONS = {
    "tis": (Correction("truncate", "token", high=1.2), "token", 1.2),
    "tis of sequences": (Correction("truncate", "sequence", high=1.5), "sequence", 1.5),
    "icepop": (Correction("mask", "token", high=1.3, low=0.8), "token", "0.8_1.3"),
    "mis": (Correction("mask", "sequence", high=1.5), "sequence", "1e-30_1.5"),
    "mis with a band": (
        Correction("mask", "sequence", high=2.0, low=0.5),
        "sequence",
        "0.5_2.0",
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("loss", ["vanilla", "gspo", "cispo", "sapo"])
def test_corrections(seed, name, loss):
    case = Case(seed)
    correction, level, threshold = CORRECTIONS[name]
    weights, _ = compute_rollout_correction_weights(
        case.old - case.engine, case.mask, rollout_is=level, rollout_is_threshold=threshold
    )
    preset = PRESETS[{"vanilla": "dapo"}.get(loss, loss)]
    objective = structs.replace(preset, correction=correction, recompute_old=True)
    compare(case, objective, loss, weights=weights, recomputed=True)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", Level)
def test_what_is_left_out_is_what_verl_rejects(seed, level):
    """verl's rejection takes tokens out of the mean, too; ours keeps the mean of the whole step."""
    case = Case(seed)
    option = "token_k1" if level is Level.TOKEN else "seq_sum_k1"
    kept, _ = compute_rollout_rejection_mask(
        case.old - case.engine, case.mask, rollout_rs=option, rollout_rs_threshold="0.5_2.0"
    )
    objective = Objective(
        correction=Correction("mask", level, high=2.0, low=0.5), recompute_old=True
    )
    _, parts = policy_loss(case.flat(objective, case.new, recomputed=True), objective)
    assert parts.kept.tolist() == kept[case.mask.bool()].bool().tolist()
