"""Losses: hand-computed cases, gradients, and the same number however a batch is cut."""

import math

import pytest
import torch
from msgspec import structs

from holdfast.records.errors import UsageError
from holdfast.training.batch import sequence_weights
from holdfast.training.objective.diagnostics import Diagnostics
from holdfast.training.objective.losses import TokenBatch, kl_estimate, policy_loss
from holdfast.training.objective.objective import (
    ICEPOP,
    MIS,
    PRESETS,
    TIS,
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
    objective_named,
)


def batch(ratios, advantages, *, sequences=None, weights=None, **more):
    """Tokens whose new policy is `ratios` times as likely as the engine's."""
    engine = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    logprobs = (engine + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    return TokenBatch(
        logprobs=logprobs,
        engine_logprobs=engine,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.tensor(weights or [1.0] * len(ratios), dtype=torch.float64),
        sequences=torch.tensor(sequences or list(range(len(ratios)))),
        **more,
    )


def loss_of(clip, ratios, advantages, **more):
    tokens = batch(ratios, advantages, **more)
    loss, parts = policy_loss(tokens, Objective(clip=clip))
    loss.backward()
    return loss.item(), tokens.logprobs.grad.tolist(), parts


def test_the_two_sided_clip_stops_gains_and_keeps_losses():
    clip = Clip(0.2, 0.3)
    loss, gradient, parts = loss_of(clip, [1.5, 0.5, 1.5, 0.5, 1.0], [1.0, 1.0, -1.0, -1.0, 2.0])
    assert loss == pytest.approx(-1.3 - 0.5 + 1.5 + 0.8 - 2.0)
    assert gradient == pytest.approx([0.0, -0.5, 1.5, 0.0, -2.0])
    assert parts.clipped.tolist() == [True, False, False, True, False]


def test_the_dual_clip_bounds_the_loss_of_a_negative_advantage():
    loss, gradient, parts = loss_of(Clip(dual=3.0), [5.0, 2.0, 5.0], [-1.0, -1.0, 1.0])
    assert loss == pytest.approx(3.0 + 2.0 - 1.2)
    assert gradient == pytest.approx([0.0, 2.0, 0.0])
    assert parts.clipped.tolist() == [True, False, True]


def test_a_capped_weight_keeps_every_gradient():
    _, gradient, parts = loss_of(Cap(low=1.0, high=0.5), [4.0, 0.1, 4.0], [1.0, 1.0, -1.0])
    assert gradient == pytest.approx([-1.5, -0.1, 1.5])
    assert parts.clipped.tolist() == [True, False, True]


def test_the_soft_gate_is_the_plain_gradient_at_one_and_fades_away_from_it():
    _, gradient, _ = loss_of(Gate(1.0, 2.0), [1.0, 1.0, 9.0], [1.0, -1.0, 1.0])
    assert gradient[:2] == pytest.approx([-1.0, 1.0])
    assert abs(gradient[2]) < 0.02


def test_unclipped_is_the_importance_weighted_policy_gradient():
    loss, gradient, _ = loss_of(Unclipped(), [2.0, 0.5], [1.0, -3.0])
    assert loss == pytest.approx(-2.0 + 1.5)
    assert gradient == pytest.approx([-2.0, 1.5])


def test_a_sequence_has_one_ratio_the_geometric_mean_of_its_tokens():
    tokens = batch([4.0, 1.0, 3.0], [1.0, 1.0, -1.0], sequences=[0, 0, 1])
    loss, parts = policy_loss(tokens, Objective(ratio=Level.SEQUENCE, clip=Unclipped()))
    assert parts.ratio.tolist() == pytest.approx([2.0, 2.0, 3.0])
    loss.backward()
    assert tokens.logprobs.grad.tolist() == pytest.approx([-2.0, -2.0, 3.0])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 + math.log(2) - 1)],
)
def test_estimates_of_the_divergence(kind, expected):
    new, reference = torch.tensor([-1.0]), torch.tensor([-1.0 - math.log(2)])
    assert kl_estimate(new, reference, KlEstimate(kind)).item() == pytest.approx(expected, abs=1e-6)


def test_the_divergence_is_a_term_of_the_loss_plain_or_weighted():
    plain = batch([2.0], [0.0], reference_logprobs=torch.tensor([-2.0]).double())
    loss, parts = policy_loss(plain, Objective(kl=Kl(0.1, KlEstimate.K1), clip=Unclipped()))
    assert loss.item() == pytest.approx(0.1 * math.log(2))
    assert parts.kl.tolist() == pytest.approx([math.log(2)])
    weighted, _ = policy_loss(
        plain, Objective(kl=Kl(0.1, KlEstimate.K1, weighted=True), clip=Unclipped())
    )
    assert weighted.item() == pytest.approx(0.2 * math.log(2))


def test_the_divergence_in_the_reward_is_no_term_of_the_loss():
    tokens = batch([2.0], [0.0], reference_logprobs=torch.tensor([-2.0]).double())
    assert policy_loss(tokens, Objective(kl=Kl(0.1, place="reward")))[0].item() == 0


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (TIS, [2.0, 0.6, 1.0]),
        (ICEPOP, [4.0, 0.6, 1.0]),
        (MIS, [0.0, 0.0, 1.0]),
        (Correction("mask", "token", high=3.0, low=0.7), [0.0, 0.0, 1.0]),
        (Correction("mask", "sequence", high=3.0), [2.4, 2.4, 1.0]),
        (Correction("mask", "sequence", high=1.5), [0.0, 0.0, 1.0]),
        (Correction("truncate", "sequence", high=1.5), [1.5, 1.5, 1.0]),
    ],
)
def test_a_correction_weighs_by_trainer_over_engine(correction, expected):
    """Recomputed by the trainer, the old policy is 4, 0.6 and 1 times as likely as the engine's."""
    old = -2.0 + torch.tensor([4.0, 0.6, 1.0], dtype=torch.float64).log()
    tokens = batch([1.0] * 3, [1.0] * 3, sequences=[0, 0, 1], old_logprobs=old)
    tokens.logprobs = old.clone().requires_grad_()
    goal = Objective(correction=correction, recompute_old=True, clip=Unclipped())
    loss, parts = policy_loss(tokens, goal)
    loss.backward()
    assert (-tokens.logprobs.grad).tolist() == pytest.approx(expected)
    assert parts.kept.tolist() == [value != 0 for value in expected]


def test_with_recorded_logprobs_a_mask_is_zero_or_one():
    tokens = batch([4.0, 1.5], [1.0, 1.0])
    loss, _ = policy_loss(
        tokens, Objective(correction=Correction("mask", high=2.0), clip=Unclipped())
    )
    assert loss.item() == pytest.approx(-1.5)


def test_stale_sequences_with_a_negative_advantage_are_left_out():
    tokens = batch([0.2, 0.2, 0.2, 1.0], [-1.0, -1.0, 1.0, -1.0], sequences=[0, 0, 1, 2])
    loss, parts = policy_loss(tokens, Objective(stale_mask=1.0, clip=Unclipped()))
    loss.backward()
    assert parts.kept.tolist() == [False, False, True, True]
    assert loss.item() == pytest.approx(-0.2 + 1.0)
    assert tokens.logprobs.grad.tolist() == pytest.approx([0.0, 0.0, -0.2, 1.0])


def test_a_sequence_is_as_stale_as_its_tokens_are_on_average():
    tokens = batch([0.05, 1.0, 0.2, 1.0], [-1.0] * 4, sequences=[0, 0, 1, 1])
    _, parts = policy_loss(tokens, Objective(stale_mask=1.0, clip=Unclipped()))
    assert parts.kept.tolist() == [False, False, True, True], "1.5 nats on average, and 0.8"


def test_entropy_is_a_bonus():
    tokens = batch([1.0], [0.0], entropy=torch.tensor([2.0]).double())
    assert policy_loss(tokens, Objective(entropy=0.1))[0].item() == pytest.approx(-0.2)


@pytest.mark.parametrize(
    "name", [n for n, goal in PRESETS.items() if not isinstance(goal.clip, Cap)]
)
def test_gradients_are_those_of_the_number(name):
    tokens = batch([0.7, 1.05, 1.6, 0.9], [1.0, 1.0, -2.0, -2.0], sequences=[0, 0, 1, 1])
    goal = structs.replace(PRESETS[name], entropy=0.0)

    def number(logprobs):
        tokens.logprobs = logprobs
        return policy_loss(tokens, goal)[0]

    assert torch.autograd.gradcheck(number, (tokens.logprobs.detach().requires_grad_(),))


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_loss_however_a_batch_is_cut_and_ordered(name):
    lengths = [[3, 2], [4], [1]]
    flat = [n for branches in lengths for n in branches]
    goal = PRESETS[name]
    weights = [
        w
        for branches, values in zip(
            lengths, sequence_weights(lengths, goal.mean, goal.constant), strict=True
        )
        for n, w in zip(branches, values, strict=True)
        for _ in range(n)
    ]
    sequences = [number for number, n in enumerate(flat) for _ in range(n)]
    generator = torch.Generator().manual_seed(1)
    ratios = (torch.rand(10, generator=generator) + 0.5).tolist()
    gains = [0.5, 0.5, -1.0, 0.25]
    advantages = [gains[s] for s in sequences]

    def total(parts):
        result = 0.0
        for part in parts:
            tokens = batch(
                [ratios[i] for i in part],
                [advantages[i] for i in part],
                weights=[weights[i] for i in part],
                sequences=_renumbered([sequences[i] for i in part]),
            )
            result += policy_loss(tokens, goal)[0].item()
        return result

    whole = total([list(range(10))])
    assert total([list(range(5)), list(range(5, 10))]) == pytest.approx(whole)
    assert total([[9], list(range(5, 9)), [3, 4], [2, 0, 1]]) == pytest.approx(whole)


def _renumbered(numbers):
    order = {}
    return [order.setdefault(number, len(order)) for number in numbers]


def test_means_over_tokens_trajectories_and_a_constant():
    lengths = [[3, 1], [4], [0]]
    assert sequence_weights(lengths, Mean.TOKENS) == [[1 / 8] * 2, [1 / 8], [0.0]]
    # A trajectory of two branches weighs as one, and one without trained tokens as none.
    assert sequence_weights(lengths, Mean.TRAJECTORIES) == [[1 / 8] * 2, [1 / 8], [0.0]]
    assert sequence_weights([[3, 1], [8]], Mean.TRAJECTORIES) == [[1 / 8] * 2, [1 / 16]]
    assert sequence_weights(lengths, Mean.CONSTANT, 100) == [[1 / 200] * 2, [1 / 200], [0.0]]


def test_diagnostics_are_of_the_whole_step():
    diagnostics = Diagnostics()
    for ratios, gains in (([1.5, 1.0], [1.0, 1.0]), ([0.5, 1.0], [-1.0, 1.0])):
        tokens = batch(ratios, gains)
        diagnostics.add(tokens, policy_loss(tokens, Objective())[1])
    numbers = diagnostics.numbers()
    assert (numbers["clipped_positive"], numbers["clipped_negative"]) == (0.25, 0.25)
    assert numbers["ratio_p50"] == pytest.approx(1.0)
    assert numbers["gap_max"] == pytest.approx(math.log(2), abs=1e-6)
    assert Diagnostics().numbers() == {}


@pytest.mark.parametrize(
    ("make", "noun"),
    [
        (lambda: Clip(low=-0.1), "clip low"),
        (lambda: Clip(low=1.5), "clip low"),
        (lambda: Clip(high=math.inf), "clip high"),
        (lambda: Clip(dual=0.5), "dual"),
        (lambda: Gate(positive=0), "positive"),
        (lambda: Gate(negative="wide"), "gate negative"),
        (lambda: Kl(-1), "kl coefficient"),
        (lambda: Kl(1, "k4"), "k4"),
        (lambda: Correction(high=0.0), "high"),
        (lambda: Objective(ratio="word"), "word"),
        (lambda: Objective(mean="constant"), "constant"),
        (lambda: Objective(constant=7), "constant"),
        (lambda: Objective(correction=TIS), "recompute_old"),
        (lambda: Objective(entropy=-1), "entropy"),
        (lambda: objective_named("gpro"), "grpo"),
    ],
)
def test_what_makes_no_sense_is_named(make, noun):
    with pytest.raises(UsageError, match=noun):
        make()
