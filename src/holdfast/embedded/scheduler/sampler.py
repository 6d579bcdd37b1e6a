"""Draws tokens from logits, row by row. A row's bits do not depend on the other rows.

All numbers are float64. The cumulative sums run in order of the vocabulary, one row at a time. Rows
are padded to a multiple of the vector width, so that elementwise operations never treat an element
as a remainder. Random numbers are pure functions: a token's number depends only on its seed and its
position. No generator has a state that an interruption could lose.
"""

import math
import secrets
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.embedded.scheduler.generation import Drawn, TokenCandidate, TokenSampling

_LANES = 64
_NONE = float("-inf")


def draw(
    logits: Tensor,
    requests: Sequence[tuple[TokenSampling, int]],
    texts: Sequence[tuple[Sequence[int], int]] = (),
) -> list[Drawn | None]:
    """Draws one token for each row. `requests` has each row's sampling and the token's absolute
    position. `texts`, for penalties, has each row's tokens so far and how many of them belong to
    the prompt.

    The order is vLLM's: bias, penalties, temperature, min_p, top_k, top_p. Logprobs belong to the
    distribution that was sampled from, or for greedy rows to the uncut distribution at temperature
    1. For a row with logits that are not finite, returns None.
    """
    scaled = _scale(logits, [sampling for sampling, _ in requests], texts)
    weights, cumulative = _weights(scaled)
    cut = [i for i, (sampling, _) in enumerate(requests) if sampling.is_cut]
    if cut:
        outside = _outside(weights[cut], [requests[i][0] for i in cut])
        scaled[cut] = scaled[cut].masked_fill(outside, _NONE)
        weights[cut] = weights[cut].masked_fill(outside, 0.0)
        cumulative[cut] = weights[cut].cumsum(-1)
    totals = cumulative[:, -1:]
    chosen = _choose(scaled, cumulative, totals, requests)
    logprobs = scaled - totals.log()
    return _collect(logprobs, chosen, [sampling for sampling, _ in requests])


def _scale(
    logits: Tensor,
    samplings: Sequence[TokenSampling],
    texts: Sequence[tuple[Sequence[int], int]],
) -> Tensor:
    """Returns the logits after biases, penalties and temperature, minus the largest of each row."""
    rows, vocabulary = logits.shape
    padded = -(-vocabulary // _LANES) * _LANES
    temperature = torch.tensor(
        [[sampling.temperature or 1.0] for sampling in samplings],
        dtype=torch.float64,
        device=logits.device,
    )
    scaled = torch.full((rows, padded), _NONE, dtype=torch.float64, device=logits.device)
    scaled[:, :vocabulary] = logits
    for row, sampling in enumerate(samplings):
        if sampling.is_bent:
            _bend(scaled[row], sampling, *(texts[row] if texts else ((), 0)))
    scaled /= temperature
    scaled -= scaled.amax(-1, keepdim=True)
    return scaled


def _bend(row: Tensor, sampling: TokenSampling, ids: Sequence[int], prompt_length: int) -> None:
    """Applies biases and penalties as vLLM does. The repetition penalty applies to tokens of prompt
    and reply, the other penalties only to tokens of the reply."""
    if sampling.logit_bias:
        _add(row, dict(sampling.logit_bias))
    if sampling.repetition_penalty != 1 and ids:
        seen = torch.tensor(sorted(set(ids)), device=row.device)
        logits = row[seen]
        factor = sampling.repetition_penalty
        row[seen] = torch.where(logits > 0, logits / factor, logits * factor)
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = Counter(ids[prompt_length:])
        presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
        _add(row, {token: -(presence + frequency * count) for token, count in counts.items()})


def _add(row: Tensor, amounts: dict[int, float]) -> None:
    if amounts:
        tokens = torch.tensor(list(amounts), device=row.device)
        row[tokens] += torch.tensor(list(amounts.values()), dtype=row.dtype, device=row.device)


def _weights(scaled: Tensor) -> tuple[Tensor, Tensor]:
    weights = scaled.exp()
    return weights, weights.cumsum(-1)


def _outside(weights: Tensor, samplings: Sequence[TokenSampling]) -> Tensor:
    """Returns the tokens that are cut: tokens below `min_p` (relative to the likeliest, which
    weighs 1), beyond the first `top_k`, or outside of the smallest set with a mass of `top_p`. Ties
    are ordered by token id."""
    width = weights.shape[-1]
    weights = weights.masked_fill(
        weights < _column(weights, [sampling.min_p for sampling in samplings]), 0.0
    )
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    sums = ordered.cumsum(-1)
    kept = torch.tensor([[min(sampling.top_k or width, width)] for sampling in samplings]).to(
        weights.device
    )
    shares = _column(
        weights, [sampling.top_p if sampling.top_p < 1 else math.inf for sampling in samplings]
    )
    limit = shares * sums.gather(-1, kept - 1)
    beyond = (sums - ordered) >= limit
    beyond |= torch.arange(width, device=weights.device)[None] >= kept
    beyond |= ordered == 0
    beyond[:, 0] = False
    return torch.empty_like(beyond).scatter_(-1, order, beyond)


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _choose(
    scaled: Tensor,
    cumulative: Tensor,
    totals: Tensor,
    requests: Sequence[tuple[TokenSampling, int]],
) -> list[int]:
    """Inverts the cumulative sum: chooses the first token whose sum is above the random number."""
    device = scaled.device
    numbers = [[uniform(sampling.seed, position)] for sampling, position in requests]
    target = torch.tensor(numbers, dtype=torch.float64, device=device) * totals
    # Rounding must not move a number near 1 past the last token with weight.
    target = torch.minimum(target, torch.nextafter(totals, torch.zeros_like(totals)))
    sampled = torch.searchsorted(cumulative, target, right=True)[:, 0].tolist()
    if all(sampling.temperature for sampling, _ in requests):
        return list(sampled)
    greedy = scaled.argmax(-1).tolist()
    return [
        best if sampling.temperature == 0 else drawn
        for (sampling, _), best, drawn in zip(requests, greedy, sampled, strict=True)
    ]


def _collect(
    logprobs: Tensor, chosen: Sequence[int], samplings: Sequence[TokenSampling]
) -> list[Drawn | None]:
    places = torch.tensor(chosen, device=logprobs.device)[:, None].clamp_(max=logprobs.shape[1] - 1)
    values = logprobs.gather(-1, places)
    ranks = (logprobs >= values).sum(-1).tolist()
    finite = values.isfinite()[:, 0].tolist()
    rounded = values.float()[:, 0].tolist()
    return [
        Drawn(token, logprob, rank, _top(logprobs[row], samplings[row].logprobs or 0))
        if good
        else None
        for row, (token, logprob, rank, good) in enumerate(
            zip(chosen, rounded, ranks, finite, strict=True)
        )
    ]


def _top(logprobs: Tensor, count: int) -> tuple[TokenCandidate, ...]:
    if not count:
        return ()
    values, tokens = logprobs.sort(descending=True, stable=True)
    best = zip(tokens[:count].tolist(), values[:count].float().tolist(), strict=True)
    return tuple(
        TokenCandidate(token, value, rank) for rank, (token, value) in enumerate(best, start=1)
    )


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEPS = 1 << 52
SEED_LEAST, SEED_MOST = -(1 << 63), (1 << 63) - 1


def uniform(seed: int, position: int) -> float:
    """Returns a number strictly between 0 and 1 for the token at an absolute position."""
    bits = _mix(_mix(seed & _MASK) ^ (position * _GOLDEN & _MASK))
    return ((bits >> 12) + 0.5) / _STEPS


def derive_seed(seed: int, choice: int) -> int:
    """Returns the seed of one of n choices. Choice 0 has the request's own seed, so it is the same
    as the only choice of a request with n = 1."""
    if choice == 0:
        return seed
    return _mix(_mix(seed & _MASK) + choice * _GOLDEN & _MASK) >> 1


def fresh_seed() -> int:
    """Returns a random seed for a request without one."""
    return secrets.randbits(63)


def _mix(bits: int) -> int:
    """Mixes bits with the finalizer of splitmix64: every input bit changes half of the output
    bits."""
    bits = (bits + _GOLDEN) & _MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)
