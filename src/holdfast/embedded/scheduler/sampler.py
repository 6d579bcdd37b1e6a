"""Drawing tokens from logits, row by row, to the last bit the same whatever rows are beside it.

Computed in float64: the cumulative sums run in order of the vocabulary, one row at a time, and
every elementwise operation works on rows padded to a multiple of the vector width, so that no
element of any row is ever treated as a remainder.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.embedded.scheduler import seeded_random
from holdfast.embedded.scheduler.generation import Drawn, TokenCandidate, TokenSampling

_LANES = 64
_NONE = float("-inf")


def draw(logits: Tensor, requests: Sequence[tuple[TokenSampling, int]]) -> list[Drawn | None]:
    """One token for each row. `requests` has each row's sampling and the token's absolute position.

    Logprobs are of the distribution that was sampled from; for greedy rows, of temperature 1. A row
    with logits that are not finite gives None.
    """
    scaled = _scale(logits, [sampling for sampling, _ in requests])
    weights, cumulative = _weights(scaled)
    nucleus = [
        i
        for i, (sampling, _) in enumerate(requests)
        if sampling.top_p < 1.0 and sampling.temperature > 0
    ]
    if nucleus:
        outside = _outside(weights[nucleus], [requests[i][0].top_p for i in nucleus])
        scaled[nucleus] = scaled[nucleus].masked_fill(outside, _NONE)
        weights[nucleus] = weights[nucleus].masked_fill(outside, 0.0)
        cumulative[nucleus] = weights[nucleus].cumsum(-1)
    totals = cumulative[:, -1:]
    chosen = _choose(scaled, cumulative, totals, requests)
    logprobs = scaled - totals.log()
    return _collect(logprobs, chosen, [sampling for sampling, _ in requests])


def _scale(logits: Tensor, samplings: Sequence[TokenSampling]) -> Tensor:
    """Logits by temperature, less each row's largest: at most 0."""
    rows, vocabulary = logits.shape
    padded = -(-vocabulary // _LANES) * _LANES
    temperature = torch.tensor(
        [[sampling.temperature or 1.0] for sampling in samplings],
        dtype=torch.float64,
        device=logits.device,
    )
    scaled = torch.full((rows, padded), _NONE, dtype=torch.float64, device=logits.device)
    scaled[:, :vocabulary] = logits
    scaled /= temperature
    scaled -= scaled.amax(-1, keepdim=True)
    return scaled


def _weights(scaled: Tensor) -> tuple[Tensor, Tensor]:
    weights = scaled.exp()
    return weights, weights.cumsum(-1)


def _outside(weights: Tensor, top_p: Sequence[float]) -> Tensor:
    """The tokens outside of the smallest set with a mass of top_p; ties by token id."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    sums = ordered.cumsum(-1)
    limit = torch.tensor(top_p, dtype=torch.float64, device=weights.device)[:, None] * sums[:, -1:]
    beyond = (sums - ordered) >= limit
    beyond[:, 0] = False
    return torch.empty_like(beyond).scatter_(-1, order, beyond)


def _choose(
    scaled: Tensor,
    cumulative: Tensor,
    totals: Tensor,
    requests: Sequence[tuple[TokenSampling, int]],
) -> list[int]:
    """By inverting the cumulative sum: the first token with a sum above the random number."""
    device = scaled.device
    numbers = [[seeded_random.uniform(sampling.seed, position)] for sampling, position in requests]
    target = torch.tensor(numbers, dtype=torch.float64, device=device) * totals
    # Rounding must not carry a number close to 1 past the last token that has any weight.
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
