"""The head computes logprobs and entropies of chosen tokens, without ever holding all logits.

16,000 tokens with a vocabulary of 152,000 would be 10 GB of float32 logits. Here only a few
thousand rows of logits exist at a time, once in the forward and once in the backward pass. On a
GPU, the vendor's library computes the matrix products, and the kernels in `kernels` make one pass
over the logits between them.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 2**24
"""The largest number of logits that exist at a time on a CPU: 64 MiB in float32."""
GPU_SHARE = 32
"""On a GPU, the logits may use 1 / `GPU_SHARE` of the memory, up to 4 GiB. Larger chunks are
faster."""
_GPU_ROWS = 128
"""The rows of a chunk on a GPU are a multiple of this, the tile size of its matrix units."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns (logprobs, entropies) of softmax(hidden · weightᵀ / temperature), both [tokens] in
    float32.

    `hidden` [tokens, size] predicts `targets` [tokens]. Both results have gradients.
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
        score = _score if (fused := _kernels(hidden.device)) is None else fused.score
        for part in _chunks(len(targets), weight):
            logits = _logits(hidden[part], weight)
            logprobs[part], entropies[part], normalizers[part] = score(
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
        slope = _slope if (fused := _kernels(hidden.device)) is None else fused.slope
        for part in _chunks(len(targets), weight):
            logits = _logits(hidden[part], weight)
            values = (targets, temperature, normalizers, entropies, *gradients)
            slopes = slope(logits, bias, *(value[part] for value in values), dtype=hidden.dtype)
            del logits
            if of_hidden is not None:
                of_hidden[part] = slopes @ weight
            if of_weight is not None:
                _add_product(of_weight, slopes.T, hidden[part])
            if of_bias is not None:
                of_bias.add_(slopes.sum(0))
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
    """Returns (logprobs, entropies, normalizers) of a chunk."""
    scaled = _scale(logits, bias, temperature)
    normalizer = scaled.logsumexp(-1)
    picked = scaled.gather(-1, targets[:, None])[:, 0]
    expected = (scaled - normalizer[:, None]).exp_().mul_(scaled).sum(-1)
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
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the gradient of a chunk's logits.

    d logprob = onehot - p; d entropy = -p (log p + entropy)
    """
    log_p = _scale(logits, bias, temperature).sub_(normalizers[:, None])
    p = log_p.exp()
    # In place, as each copy is as large as the logits.
    slope = log_p.add_(entropies[:, None]).mul_(-of_entropies[:, None])
    slope = slope.sub_(of_logprobs[:, None]).mul_(p)
    at = targets[:, None]
    slope.scatter_(1, at, slope.gather(1, at) + of_logprobs[:, None])
    return slope.div_(temperature[:, None]).to(dtype)


def _scale(logits: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    scaled = logits.float() if bias is None else logits.float() + bias.float()
    return scaled / temperature[:, None]


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Computes logits. On a GPU, computes them in float32, which costs little there. In bfloat16, a
    logit of 20 could be off by 0.06."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    return hidden @ weight.T


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Computes total += left @ right."""
    if left.is_cuda and left.dtype != torch.float32:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.add_(left @ right)


def _chunks(tokens: int, weight: Tensor) -> list[slice]:
    logits = _gpu_chunk_logits(weight.device) if weight.is_cuda else CHUNK_LOGITS
    size = max(logits // len(weight), 1)
    if weight.is_cuda and tokens > size:
        even = -(-tokens // -(-tokens // size))
        size = -(-even // _GPU_ROWS) * _GPU_ROWS
    return [slice(start, start + size) for start in range(0, tokens, size)]


@cache
def _gpu_chunk_logits(device: torch.device) -> int:
    memory = torch.cuda.get_device_properties(device).total_memory
    return min(max(memory // GPU_SHARE // 4, CHUNK_LOGITS), 2**30)


def why_unfused(device: torch.device) -> str:
    """Returns why the fused kernels are not used on this device, so that the head makes many passes
    over its logits. Returns "" if the kernels are used, or if there are none for the device."""
    return _fused()[1] if device.type == "cuda" else ""


def _kernels(device: torch.device) -> Any:
    return _fused()[0] if device.type == "cuda" else None


@cache
def _fused() -> tuple[Any, str]:
    """Returns the fused kernels and "". If the kernels do not work here, returns None and the
    reason. Tries the kernels on a few numbers."""
    try:
        from holdfast.training.packing import kernels

        _try_out(kernels, torch.device("cuda"))
    except Exception as error:  # Compilers fail in many ways. Any error is reported.
        first = next(iter(str(error).splitlines()), "")
        return None, f"Triton does not work here ({first or type(error).__name__})"
    return kernels, ""


def _try_out(kernels: Any, device: torch.device) -> None:
    """Raises `RuntimeError` if the results of the kernels differ from the results of plain
    torch."""
    logits = torch.linspace(-3, 3, 15, device=device).reshape(3, 5)
    targets, ones = torch.arange(3, device=device), torch.ones(3, device=device)
    scored = _score(logits, None, targets, 2 * ones)
    more = (targets, 2 * ones, scored[2], scored[1], ones, -ones)
    expected = [*scored, _slope(logits, None, *more, dtype=torch.float32)]
    outputs = [
        *kernels.score(logits, None, targets, 2 * ones),
        kernels.slope(logits, None, *more, dtype=torch.float32),
    ]
    for ours, theirs in zip(outputs, expected, strict=True):
        if not torch.allclose(ours, theirs, atol=1e-4):
            raise RuntimeError("its numbers are not those of torch")
