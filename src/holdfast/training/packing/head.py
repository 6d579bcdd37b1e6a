"""The head: logprobs and entropies of chosen tokens, without ever holding all logits.

16,000 tokens with a vocabulary of 152,000 would be 10 GB of float32 logits. Here a few thousand
rows of them exist at a time, once on the way forward and once on the way back.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 2**26
"""Logits that exist at a time: 256 MiB in float32."""
GPU_CHUNK_LOGITS = 2**28


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(logprobs, entropies), both [tokens] in float32, of softmax(hidden · weightᵀ / temperature).

    `hidden` [tokens, size] predicts `targets` [tokens]; both results have gradients.
    """
    inputs = (hidden, weight, bias, targets, temperature)
    results: tuple[Tensor, Tensor] = _Head.apply(*inputs)  # type: ignore[no-untyped-call]
    return results


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets), device=hidden.device)
        entropies, normalizers = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _chunks(len(targets), weight):
            logits = hidden[part] @ weight.T
            logprobs[part], entropies[part], normalizers[part] = _score(
                logits, bias, targets[part], temperature[part]
            )
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, normalizers, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, normalizers, entropies = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight = torch.zeros(weight.shape, device=weight.device) if wants_weight else None
        of_bias = torch.zeros(len(weight), device=weight.device) if wants_bias else None
        for part in _chunks(len(targets), weight):
            logits = hidden[part] @ weight.T
            values = (targets, temperature, normalizers, entropies, *gradients)
            found = _slope(logits, bias, *(value[part] for value in values))
            if of_hidden is not None:
                of_hidden[part] = found @ weight
            if of_weight is not None:
                of_weight.add_(found.T @ hidden[part])
            if of_bias is not None:
                of_bias.add_(found.sum(0))
        return (
            of_hidden,
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            None,
            None,
        )


def _score(
    logits: Tensor, bias: Tensor | None, targets: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs, entropies, normalizers) of a chunk."""
    scaled = _scale(logits, bias, temperature)
    normalizer = scaled.logsumexp(-1)
    picked = scaled.gather(-1, targets[:, None])[:, 0]
    expected = ((scaled - normalizer[:, None]).exp() * scaled).sum(-1)
    return picked - normalizer, normalizer - expected, normalizer


def _slope(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    normalizers: Tensor,
    entropies: Tensor,
    of_logprobs: Tensor,
    of_entropies: Tensor,
) -> Tensor:
    """The gradient of a chunk's logits, in their type.

    d logprob = onehot - p;  d entropy = -p (log p + entropy)
    """
    log_p = _scale(logits, bias, temperature) - normalizers[:, None]
    slope = -(log_p + entropies[:, None]) * of_entropies[:, None] - of_logprobs[:, None]
    slope = slope * log_p.exp()
    is_target = torch.arange(logits.shape[1], device=logits.device)[None] == targets[:, None]
    slope = slope + torch.where(is_target, of_logprobs[:, None], 0.0)
    return (slope / temperature[:, None]).to(logits.dtype)


def _scale(logits: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    scaled = logits.float() if bias is None else logits.float() + bias.float()
    return scaled / temperature[:, None]


def _chunks(tokens: int, weight: Tensor) -> list[slice]:
    size = max((GPU_CHUNK_LOGITS if weight.is_cuda else CHUNK_LOGITS) // len(weight), 1)
    return [slice(start, start + size) for start in range(0, tokens, size)]
