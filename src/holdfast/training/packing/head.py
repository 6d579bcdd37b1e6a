"""The head: logprobs and entropies of chosen tokens, without ever holding all logits.

16,000 tokens with a vocabulary of 152,000 would be 10 GB of float32 logits. Here a few thousand
rows of them exist at a time, once on the way forward and once on the way back.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 2**26
"""Logits that exist at a time: 256 MiB in float32."""


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
        entropies = torch.empty_like(logprobs)
        normalizers = torch.empty_like(logprobs)
        for part in _chunks(len(targets), weight.shape[0]):
            logits = _logits(hidden[part], weight, bias, temperature[part])
            normalizer = logits.logsumexp(-1)
            picked = logits.gather(-1, targets[part, None])[:, 0]
            probabilities = (logits - normalizer[:, None]).exp_()
            normalizers[part] = normalizer
            logprobs[part] = picked - normalizer
            entropies[part] = normalizer - (probabilities.mul_(logits)).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, normalizers, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, normalizers, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = gradients
        hidden_gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_gradient = (
            torch.zeros(weight.shape, device=weight.device) if ctx.needs_input_grad[1] else None
        )
        bias_gradient = (
            torch.zeros(weight.shape[0], device=weight.device)
            if bias is not None and ctx.needs_input_grad[2]
            else None
        )
        for part in _chunks(len(targets), weight.shape[0]):
            logits = _logits(hidden[part], weight, bias, temperature[part])
            log_probabilities = logits.sub_(normalizers[part, None])
            probabilities = log_probabilities.exp()
            # d logprob = onehot - p;  d entropy = -p (log p + entropy)
            slope = log_probabilities.add_(entropies[part, None]).mul_(-of_entropies[part, None])
            slope = slope.sub_(of_logprobs[part, None]).mul_(probabilities)
            slope.scatter_add_(-1, targets[part, None], of_logprobs[part, None])
            slope.div_(temperature[part, None])
            cast = slope.to(weight.dtype)
            if hidden_gradient is not None:
                hidden_gradient[part] = cast @ weight
            if weight_gradient is not None:
                weight_gradient.add_(cast.T @ hidden[part])
            if bias_gradient is not None:
                bias_gradient.add_(slope.sum(0))
        return (
            hidden_gradient,
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None if bias_gradient is None or bias is None else bias_gradient.to(bias.dtype),
            None,
            None,
        )


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    logits = (hidden @ weight.T).float()
    if bias is not None:
        logits = logits.add_(bias.float())
    return logits.div_(temperature[:, None])


def _chunks(tokens: int, vocabulary: int) -> list[slice]:
    size = max(CHUNK_LOGITS // vocabulary, 1)
    return [slice(start, start + size) for start in range(0, tokens, size)]
