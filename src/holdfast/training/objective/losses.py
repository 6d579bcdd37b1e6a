"""Computes an objective as numbers, with pure functions over flat tensors.

Every tensor has one value for each trained token, in any order; `sequences` says which tokens
belong together. The weights of tokens are computed once for the whole optimizer step
(`batch.sequence_weights`), so that the sum over micro-batches does not depend on how a batch is
divided. All tokens of a sequence are in the same micro-batch.
"""

import torch
from msgspec import Struct
from torch import Tensor

from holdfast.training.objective.objective import (
    BoundAction,
    Cap,
    Clip,
    Correction,
    Gate,
    Kl,
    KlEstimate,
    KlPlace,
    Level,
    Objective,
)

_MAX_LOG_RATIO = 20.0
"""The largest log ratio. Larger log ratios are clamped, because their gradient is useless."""


class TokenBatch(Struct):
    """The trained tokens of a micro-batch. Every tensor has the shape [tokens]."""

    logprobs: Tensor
    """Logprobs of the trained policy. Only they have a gradient."""
    engine_logprobs: Tensor
    """Logprobs that were recorded when the tokens were sampled."""
    advantages: Tensor
    weights: Tensor
    """The weights from `batch.sequence_weights`."""
    sequences: Tensor
    """The number of each token's sequence, from 0 on."""
    old_logprobs: Tensor | None = None
    """Logprobs of the trainer at the beginning of the step. With None, the recorded logprobs stand
    for the old policy."""
    reference_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    fresh: Tensor | None = None
    """Marks the tokens at which the gap between engine and trainer is measured: those sampled by
    the weights that compute the trainer's logprobs. None means all tokens."""

    @property
    def old(self) -> Tensor:
        return self.engine_logprobs if self.old_logprobs is None else self.old_logprobs


class LossParts(Struct):
    """The parts of a loss, per token, for diagnostics. They have no gradient."""

    ratio: Tensor
    clipped: Tensor
    """Whether the clip changed this token's gradient."""
    kept: Tensor
    """False for a token that a correction, or the mask of stale sequences, left out of the loss."""
    kl: Tensor | None


def policy_loss(batch: TokenBatch, objective: Objective) -> tuple[Tensor, LossParts]:
    """Returns the micro-batch's part of the step's loss, and the parts of this loss for
    diagnostics. The loss of the step is the sum over its micro-batches."""
    ratio = _ratio(batch, objective.ratio)
    losses, clipped = _clip(batch, ratio, objective.clip)
    factor = _correction(batch, objective.correction)
    fresh = _fresh(batch, objective.stale_mask)
    losses = losses * factor * fresh
    divergence = None
    if batch.reference_logprobs is not None:
        divergence = kl_estimate(batch.logprobs, batch.reference_logprobs, objective.kl.estimate)
        losses = losses + _kl_term(batch, divergence, objective.kl)
    if batch.entropy is not None and objective.entropy:
        losses = losses - objective.entropy * batch.entropy
    parts = LossParts(
        ratio=ratio.detach(),
        clipped=clipped,
        kept=(factor != 0) & (fresh != 0),
        kl=None if divergence is None else divergence.detach(),
    )
    return (losses * batch.weights).sum(), parts


def kl_estimate(logprobs: Tensor, reference: Tensor, kind: KlEstimate) -> Tensor:
    """Estimates KL(policy ‖ reference) at each token. k1 is unbiased and may be negative. The
    gradient of k2 has the smallest bias. k3 is unbiased and never negative."""
    difference = logprobs - reference
    if kind is KlEstimate.K1:
        return difference
    if kind is KlEstimate.K2:
        return difference.square() / 2
    backward = (-difference).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return backward.exp() - backward - 1


def sequence_means(values: Tensor, sequences: Tensor) -> Tensor:
    """Returns, for each token, the mean of `values` over the token's sequence."""
    sums, counts = _sequence_sums(values, sequences)
    return (sums / counts)[sequences]


def _sequence_sums(values: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
    # There are at most as many sequences as tokens. Reading the exact number would wait for the
    # GPU.
    sums = torch.zeros_like(values).index_add(0, sequences, values)
    counts = torch.zeros_like(values).index_add(0, sequences, torch.ones_like(values))
    return sums, counts.clamp(min=1)


def _ratio(batch: TokenBatch, level: Level) -> Tensor:
    """Returns the ratio of new to old probabilities. At the level of sequences, the value of each
    token is the ratio of its whole sequence, and the token's gradient comes from the token's own
    logprob. A gradient of the sequence's mean would also reach tokens that a correction left out or
    that have another advantage."""
    difference = batch.logprobs - batch.old
    if level is Level.SEQUENCE:
        whole = sequence_means(difference.detach(), batch.sequences)
        difference = whole + (batch.logprobs - batch.logprobs.detach())
    return difference.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def _clip(batch: TokenBatch, ratio: Tensor, clip: object) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token, and whether the clip changed its gradient."""
    gain = batch.advantages
    if isinstance(clip, Clip):
        return _two_sided(gain, ratio, clip)
    if isinstance(clip, Cap):
        weight = ratio.detach().clamp(1 - clip.low, 1 + clip.high)
        return -weight * gain * batch.logprobs, weight != ratio.detach()
    if isinstance(clip, Gate):
        steepness = torch.full_like(gain, clip.negative).masked_fill(gain > 0, clip.positive)
        gated = torch.sigmoid(steepness * (ratio - 1)) * (4 / steepness)
        return -gated * gain, torch.zeros_like(ratio, dtype=torch.bool)
    return -ratio * gain, torch.zeros_like(ratio, dtype=torch.bool)


def _two_sided(gain: Tensor, ratio: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    plain = -ratio * gain
    bounded = -ratio.clamp(1 - clip.low, 1 + clip.high) * gain
    losses = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if clip.dual is not None:
        ceiling = -clip.dual * gain
        too_much = (gain < 0) & (losses > ceiling)
        losses = torch.where(too_much, ceiling, losses)
        clipped = clipped | too_much
    return losses, clipped.detach()


def _correction(batch: TokenBatch, correction: Correction | None) -> Tensor:
    """Returns the factor by which each token's loss is multiplied. The factor has no gradient."""
    if correction is None:
        return torch.ones_like(batch.engine_logprobs)
    recorded = batch.old_logprobs is None
    trainer = batch.logprobs.detach() if recorded else batch.old
    gap = trainer - batch.engine_logprobs
    if correction.level is Level.SEQUENCE:
        gap = _sequence_sums(gap, batch.sequences)[0][batch.sequences]
    weight = gap.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    if correction.action is BoundAction.TRUNCATE:
        return weight.clamp(correction.low, correction.high)
    inside = (weight >= correction.low) & (weight <= correction.high)
    return inside.to(weight.dtype) if recorded else torch.where(inside, weight, 0.0)


def _fresh(batch: TokenBatch, limit: float | None) -> Tensor:
    """Returns 0 for each token of a stale sequence that has a negative advantage, and 1 for every
    other token."""
    if limit is None:
        return torch.ones_like(batch.engine_logprobs)
    # Always against the engine's logprobs, because the gap to the engine makes a sequence as wrong
    # as its age.
    drift = sequence_means(batch.engine_logprobs - batch.logprobs.detach(), batch.sequences)
    return 1 - ((batch.advantages < 0) & (drift > limit)).to(drift.dtype)


def _kl_term(batch: TokenBatch, divergence: Tensor, kl: Kl) -> Tensor | float:
    if kl.place is not KlPlace.LOSS or not kl.coefficient:
        return 0.0
    # Always the ratio of the token, because only this one makes the estimate unbiased.
    factor = _ratio(batch, Level.TOKEN) if kl.weighted else 1.0
    return kl.coefficient * divergence * factor
