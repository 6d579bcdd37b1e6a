"""Gradients are those of the number, for every choice of an objective; each preset by hand."""

import math
from itertools import product

import pytest
import torch
from msgspec import structs

from holdfast.training.batch import sequence_weights
from holdfast.training.objective.losses import TokenBatch, policy_loss
from holdfast.training.objective.objective import (
    PRESETS,
    Cap,
    Clip,
    Correction,
    Gate,
    Kl,
    KlEstimate,
    Level,
    Mean,
    Objective,
    Unclipped,
)

SEQUENCES = [0, 0, 0, 1, 1, 2]
RATIOS = torch.tensor([0.7, 1.05, 1.6, 0.9, 2.4, 0.5], dtype=torch.float64)
GAPS = torch.tensor([0.3, -0.2, 0.9, -1.0, 0.1, 0.05], dtype=torch.float64)
"""Of the trainer to the engine, in nats."""


def tokens(objective, **changes):
    """Six tokens of three sequences."""
    old = torch.linspace(-3, -0.5, 6, dtype=torch.float64)
    recomputed = objective.recompute_old
    lengths = [[SEQUENCES.count(number)] for number in range(3)]
    weights = sequence_weights(lengths, objective.mean, objective.constant)
    settings = {
        "logprobs": old + RATIOS.log(),
        "engine_logprobs": old - GAPS if recomputed else old,
        "old_logprobs": old if recomputed else None,
        "advantages": torch.tensor([1.0, -0.5, 0.8], dtype=torch.float64)[SEQUENCES],
        "weights": torch.tensor([weights[n][0] for n in SEQUENCES], dtype=torch.float64),
        "sequences": torch.tensor(SEQUENCES),
        "reference_logprobs": old + 0.2 if objective.kl.coefficient else None,
    }
    return TokenBatch(**settings | changes)


def check(objective):
    """Numerically, in float64."""
    inputs = [tokens(objective).logprobs.requires_grad_()]
    if objective.entropy:
        inputs.append(torch.rand(6, dtype=torch.float64, requires_grad=True))

    def number(logprobs, entropy=None):
        moved = {"logprobs": logprobs, "entropy": entropy}
        if isinstance(objective.clip, Cap):
            # Its weight has no gradient on purpose: here the old policy moves along, and the
            # weight stays.
            moved["engine_logprobs"] = logprobs.detach() - RATIOS.log()
        return policy_loss(tokens(objective, **moved), objective)[0]

    assert torch.autograd.gradcheck(number, inputs)


CLIPS = {
    "clip": Clip(0.2, 0.3),
    "dual clip": Clip(dual=1.5),
    "cap": Cap(0.4, 0.5),
    "gate": Gate(),
    "unclipped": Unclipped(),
}


@pytest.mark.parametrize(("clip", "ratio", "mean"), [*product(CLIPS, Level, Mean)])
def test_of_each_clip_ratio_and_mean(clip, ratio, mean):
    constant = 7 if mean is Mean.CONSTANT else None
    check(Objective(clip=CLIPS[clip], ratio=ratio, mean=mean, constant=constant, entropy=0.3))


@pytest.mark.parametrize(
    ("clip", "ratio", "estimate", "weighted"),
    [*product(["clip", "gate", "unclipped"], Level, KlEstimate, [False, True])],
)
def test_of_each_divergence(clip, ratio, estimate, weighted):
    check(Objective(clip=CLIPS[clip], ratio=ratio, kl=Kl(0.7, estimate, weighted=weighted)))


CORRECTIONS = {
    "truncated tokens": Correction("truncate", "token", high=1.5),
    "truncated sequences": Correction("truncate", "sequence", high=1.5),
    "masked tokens": Correction("mask", "token", high=2.0, low=0.6),
    "masked sequences": Correction("mask", "sequence", high=2.0, low=0.6),
}


@pytest.mark.parametrize(("clip", "name"), [*product(["clip", "gate", "unclipped"], CORRECTIONS)])
def test_of_each_correction(clip, name):
    goal = Objective(clip=CLIPS[clip], correction=CORRECTIONS[name], recompute_old=True)
    check(goal)
    if CORRECTIONS[name].action == "mask":
        check(structs.replace(goal, recompute_old=False))
    if CORRECTIONS[name].level is Level.SEQUENCE:
        check(structs.replace(goal, ratio=Level.SEQUENCE))


def gradient_of(objective, **changes):
    batch = tokens(objective, **changes)
    batch.logprobs.requires_grad_()
    policy_loss(batch, objective)[0].backward()
    return batch.logprobs.grad


def test_a_token_that_a_correction_leaves_out_gets_no_gradient_from_its_sequence():
    """The ratio of a sequence is made of all of its tokens; those that are left out are not moved
    by what the others count."""
    goal = Objective(
        ratio=Level.SEQUENCE,
        clip=Unclipped(),
        correction=Correction("mask", "token", high=2.0, low=0.5),
        recompute_old=True,
    )
    whole = [math.exp(RATIOS[SEQUENCES.index(n) :][: SEQUENCES.count(n)].log().mean())
             for n in range(3)]  # fmt: skip
    weight = [1 / 9, 1 / 6, 1 / 3]
    gain = [1.0, -0.5, 0.8]
    expected = [
        0.0 if place in (2, 3) else -weight[n] * whole[n] * gain[n] * math.exp(GAPS[place])
        for place, n in enumerate(SEQUENCES)
    ]
    assert gradient_of(goal).tolist() == pytest.approx(expected)


def test_the_gradient_of_a_token_is_by_its_own_advantage():
    """With a discount, the turns of a sequence have advantages of their own."""
    gains = torch.tensor([2.0, 0.0, -1.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    gradient = gradient_of(Objective(ratio=Level.SEQUENCE, clip=Unclipped()), advantages=gains)
    assert [round(v, 9) == 0 for v in gradient.tolist()] == [False, True, False, True, False, False]
    assert torch.equal(gradient.sign(), -gains.sign())


def test_stale_is_measured_against_the_engine():
    """The trainer has not moved since the beginning of the step, but was far from the engine."""
    goal = Objective(stale_mask=1.0, recompute_old=True, clip=Unclipped())
    old = torch.full((2,), -2.0, dtype=torch.float64)
    batch = TokenBatch(
        logprobs=old.clone(),
        engine_logprobs=old + torch.tensor([1.5, 0.5], dtype=torch.float64),
        old_logprobs=old,
        advantages=torch.tensor([-1.0, -1.0], dtype=torch.float64),
        weights=torch.ones(2, dtype=torch.float64),
        sequences=torch.tensor([0, 1]),
    )
    assert policy_loss(batch, goal)[1].kept.tolist() == [False, True]


def test_a_weighted_divergence_has_the_ratio_of_its_token():
    goal = Objective(ratio=Level.SEQUENCE, clip=Unclipped(), kl=Kl(1.0, "k1", weighted=True))
    batch = tokens(goal, advantages=torch.zeros(6, dtype=torch.float64))
    divergence = batch.logprobs - batch.reference_logprobs
    expected = (divergence * RATIOS * batch.weights).sum().item()
    assert policy_loss(batch, goal)[0].item() == pytest.approx(expected)


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


LOG_PI = (-2 + math.log(1.5), -2.0, -2 + math.log(0.5))
BY_HAND = {
    "grpo": ((-1.2 - 1.0) / 2 + 0.8) / 2,
    "dr_grpo": (-1.2 - 1.0 + 0.8) / (2 * 1024),
    "dapo": (-1.28 - 1.0 + 0.8) / 3,
    "cispo": (-1.28 * LOG_PI[0] - LOG_PI[1] + 0.5 * LOG_PI[2]) / 3,
    "gspo": (-1.0004 + 0.9997) / 2,
    "sapo": ((-4 * sigmoid(0.5) - 2) / 2 + 4 / 1.05 * sigmoid(1.05 * -0.5)) / 2,
    "rloo": ((-1.5 - 1.0) / 2 + 0.5) / 2,
    "reinforce++": (-1.2 - 1.0 + 0.8) / 3,
    "reinforce++-baseline": (-1.2 - 1.0 + 0.8) / 3,
    "maxrl": ((-1.2 - 1.0) / 2 + 0.8) / 2,
}


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_by_hand(name):
    """One trajectory of two tokens with ratios of 1.5 and 1 and an advantage of 1, and one of one
    token with a ratio of 0.5 and an advantage of -1."""
    goal = PRESETS[name]
    (first,), (second,) = sequence_weights([[2], [1]], goal.mean, goal.constant)
    batch = TokenBatch(
        logprobs=torch.tensor(LOG_PI, dtype=torch.float64),
        engine_logprobs=torch.full((3,), -2.0, dtype=torch.float64),
        advantages=torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64),
        weights=torch.tensor([first, first, second], dtype=torch.float64),
        sequences=torch.tensor([0, 0, 1]),
    )
    assert policy_loss(batch, goal)[0].item() == pytest.approx(BY_HAND[name])
