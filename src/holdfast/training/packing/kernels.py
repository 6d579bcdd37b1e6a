"""Does the head's work on a chunk with Triton kernels, in one pass over the logits each way.

The functions compute the same as the functions in `head` in plain torch, which make about fifteen
passes. They need Triton; `head` works without Triton. All sums are in float32.
"""

# Triton reads annotations as code, and allows no others than its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

SCORE_BLOCK, SCORE_WARPS = 2048, 4
SLOPE_BLOCK, SLOPE_WARPS = 2048, 4


def score(
    logits: Tensor, bias: Tensor | None, targets: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (logprobs, entropies, normalizers) of a chunk."""
    rows, columns = logits.shape
    output = torch.empty(3, rows, device=logits.device)
    _score[(rows,)](
        logits,
        logits.stride(0),
        bias,
        targets.contiguous(),
        temperature.contiguous(),
        output,
        rows,
        columns,
        has_bias=bias is not None,
        block=SCORE_BLOCK,
        num_warps=SCORE_WARPS,
    )
    logprobs, entropies, normalizers = output
    return logprobs, entropies, normalizers


def slope(
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
    """Returns the gradient of a chunk's logits."""
    rows, columns = logits.shape
    output = torch.empty(rows, columns, dtype=dtype, device=logits.device)
    _slope[(rows, triton.cdiv(columns, SLOPE_BLOCK))](
        logits,
        logits.stride(0),
        bias,
        targets.contiguous(),
        temperature.contiguous(),
        normalizers.contiguous(),
        entropies.contiguous(),
        of_logprobs.contiguous(),
        of_entropies.contiguous(),
        output,
        columns,
        has_bias=bias is not None,
        block=SLOPE_BLOCK,
        num_warps=SLOPE_WARPS,
    )
    return output


@triton.jit
def _score(
    logits,
    stride,
    bias,
    targets,
    temperature,
    output,
    rows,
    columns: tl.constexpr,
    has_bias: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    coldness = 1.0 / tl.load(temperature + row)
    peak = -float("inf")
    mass = tl.zeros([block], tl.float32)
    expected = tl.zeros([block], tl.float32)
    for start in range(0, columns, block):
        at = start + tl.arange(0, block)
        inside = at < columns
        scaled = tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32)
        if has_bias:
            scaled += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        scaled = scaled * coldness
        higher = tl.maximum(peak, tl.max(scaled, 0))
        shrink = tl.exp(peak - higher)
        part = tl.exp(scaled - higher)
        mass = mass * shrink + part
        # If the probability of a token is 0, its logit may be minus infinity.
        expected = expected * shrink + part * tl.where(part == 0.0, 0.0, scaled)
        peak = higher
    total = tl.sum(mass, 0)
    normalizer = peak + tl.log(total)
    target = tl.load(targets + row)
    picked = tl.load(logits + target).to(tl.float32)
    if has_bias:
        picked += tl.load(bias + target).to(tl.float32)
    tl.store(output + row, picked * coldness - normalizer)
    tl.store(output + rows + row, normalizer - tl.sum(expected, 0) / total)
    tl.store(output + 2 * rows + row, normalizer)


@triton.jit
def _slope(
    logits,
    stride,
    bias,
    targets,
    temperature,
    normalizers,
    entropies,
    of_logprobs,
    of_entropies,
    output,
    columns: tl.constexpr,
    has_bias: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < columns
    coldness = 1.0 / tl.load(temperature + row)
    gain = tl.load(of_logprobs + row)
    place = row.to(tl.int64)
    scaled = tl.load(logits + place * stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    if has_bias:
        scaled += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    log_p = scaled * coldness - tl.load(normalizers + row)
    p = tl.exp(log_p)
    log_p = tl.where(p == 0.0, 0.0, log_p)
    spread = (log_p + tl.load(entropies + row)) * tl.load(of_entropies + row)
    steepness = -(spread + gain) * p
    steepness += tl.where(at == tl.load(targets + row), gain, 0.0)
    result = (steepness * coldness).to(output.dtype.element_ty)
    tl.store(output + place * columns + at, result, mask=inside)
