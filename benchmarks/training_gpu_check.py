"""The GPU's kernels against plain torch: numbers, and times of the head's parts."""

import json
import random
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.training.model.network import Network
from holdfast.training.model.optimizer import Optimizer
from holdfast.training.packing import head
from holdfast.training.packing.head import token_logprobs
from holdfast.training.packing.rows import TokenSequence, pack
from holdfast.training.settings import OptimizerSettings

TINY = Path(__file__).parents[1] / "src/holdfast/embedded/tiny"


def check(*names: str) -> None:
    """Prints a line for each comparison, and raises at the end if one of them is bad."""
    assert not head.why_unfused(torch.device("cuda")), head.why_unfused(torch.device("cuda"))
    bad = []
    checks = {"head": _head_errors, "optimizer": _optimizer_errors, "network": _network_errors}
    for name in names or checks:
        try:
            errors = checks[name]()
        except Exception as error:  # The others are to be seen, too.
            errors = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps({"check": name, **errors}), flush=True)
        bad += [name for value in errors.values() if isinstance(value, str) or not value < 0.02]
    assert not bad, f"too far from torch: {', '.join(bad)}"


def _distance(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _head_errors() -> dict[str, Any]:
    """Relative errors of values and gradients against float64."""
    errors: dict[str, Any] = {}
    for tokens, size, vocabulary in ((700, 896, 151_936), (129, 64, 5_003), (1, 64, 7)):
        for dtype in (torch.bfloat16, torch.float32):
            found = _one_head(tokens, size, vocabulary, dtype)
            label = f"{tokens}x{size}x{vocabulary} {str(dtype)[6:]}"
            errors |= {f"{label} {name}": round(value, 6) for name, value in found.items()}
    return errors


def _one_head(tokens: int, size: int, vocabulary: int, dtype: torch.dtype) -> dict[str, float]:
    hidden = torch.randn(tokens, size, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, size, device="cuda") * 2 / size**0.5).to(dtype)
    bias = torch.randn(vocabulary, device="cuda").to(dtype).requires_grad_()
    weight.requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), device="cuda")
    warmth = torch.rand(tokens, device="cuda") + 0.5
    gains = torch.randn(2, tokens, device="cuda")
    inputs = (hidden, weight, bias)
    ours = token_logprobs(hidden, weight, targets, temperature=warmth, bias=bias)
    found = torch.autograd.grad((ours[0] * gains[0] + ours[1] * gains[1]).sum(), inputs)
    exact = [value.detach().double().requires_grad_() for value in inputs]
    scaled = ((exact[0] @ exact[1].T + exact[2]) / warmth[:, None].double()).log_softmax(-1)
    theirs = scaled.gather(-1, targets[:, None])[:, 0], -(scaled.exp() * scaled).sum(-1)
    expected = torch.autograd.grad((theirs[0] * gains[0] + theirs[1] * gains[1]).sum(), exact)
    names = ("logprobs", "entropies", "d hidden", "d weight", "d bias")
    pairs = zip(names, (*ours, *found), (*theirs, *expected), strict=True)
    return {name: _distance(mine, other.detach()) for name, mine, other in pairs}


def _optimizer_errors() -> dict[str, Any]:
    """The step on the device against the one on the CPU; gradients that are not finite."""
    torch.manual_seed(1)
    first = [torch.randn(300, 40), torch.randn(7)]
    sides = []
    for device in ("cpu", "cuda"):
        parameters = {str(n): torch.nn.Parameter(v.clone().to(device)) for n, v in enumerate(first)}
        sides.append((parameters, Optimizer(parameters, OptimizerSettings(learning_rate=1e-2))))
    norms = []
    for step in range(5):
        gradients = [torch.randn_like(value) * 10 ** (step - 2) for value in first]
        gradients[1][0] = float("inf") if step == 3 else 0.0
        for parameters, optimizer in sides:
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter.grad = gradient.clone().to(parameter.device)
            norms.append(float(optimizer.update(1e-2)))
    (cpu, _), (gpu, _) = sides
    weights = max(_distance(gpu[name], cpu[name]) for name in cpu)
    finite = [n for n in norms if n < float("inf")]
    return {
        "weights": weights,
        "norms": max(abs(a - b) / a for a, b in zip(finite[::2], finite[1::2], strict=True)),
        "inf seen": float(len(finite) != 8),
    }


def _network_errors() -> dict[str, Any]:
    """A small model in bfloat16 on the GPU, compiled, against float32 on the CPU: one minus the
    cosine of the gradients."""
    exact = Network(TINY)
    network = Network(TINY, device="cuda", dtype=torch.bfloat16)
    if network.why_sequential or network.why_slow:
        return {"error": f"{network.why_sequential} {network.why_slow}"}
    errors = {}
    for shared in (True, False):
        for seed in range(3):
            chance = random.Random(seed)
            prompt = [chance.randrange(3, 1000) for _ in range(chance.randrange(30, 300))]
            lists = [
                [*prompt, *(chance.randrange(3, 1000) for _ in range(chance.randrange(9, 200)))]
                for _ in range(4)
            ]
            sequences = [TokenSequence(ids, list(range(len(prompt), len(ids)))) for ids in lists]
            (row,) = pack(sequences, budget=4000, share=shared)
            sides = [_one_row(side, row) for side in (network, exact)]
            cosine = torch.nn.functional.cosine_similarity(sides[0], sides[1], 0)
            errors[f"shared={shared} {seed}"] = round(1 - float(cosine), 6)
    return errors


def _one_row(network: Network, row: Any) -> Tensor:
    network.module.zero_grad()
    ones = torch.ones(len(row.targets), device=network.device)
    logprobs, entropies = network.logprobs(row, ones)
    (logprobs.mean() + 0.1 * entropies.mean()).backward()  # type: ignore[no-untyped-call]
    grads = [p.grad for p in network.parameters.values()]
    return torch.cat([g.flatten().double().cpu() for g in grads if g is not None])


def time_head() -> None:
    """Milliseconds of the head at 16k tokens, whole and in parts."""
    from holdfast.training.packing import kernels

    for size in (896, 1536):
        hidden = torch.randn(16_384, size, device="cuda").bfloat16().requires_grad_()
        weight = (torch.randn(151_936, size, device="cuda") / size**0.5).bfloat16()
        weight.requires_grad_()
        targets = torch.randint(0, 151_936, (16_384,), device="cuda")
        ones = torch.ones(16_384, device="cuda")
        for power in (28, 29, 30):
            head._gpu_chunk_logits = cache(partial(_constant, 2**power))
            apply = partial(_mean_logprob, hidden, weight, targets, ones)
            both = partial(_gradients, apply, (hidden, weight))
            times = {"forward": _milliseconds(apply), "both": _milliseconds(both)}
            _say(size=size, chunk=f"2^{power}", **times)
    _time_parts(kernels, hidden.detach()[:4096, :896].contiguous(), weight.detach()[:, :896])


def _constant(value: int, _device: torch.device) -> int:
    return value


def _mean_logprob(hidden: Tensor, weight: Tensor, targets: Tensor, ones: Tensor) -> Tensor:
    return token_logprobs(hidden, weight, targets, temperature=ones)[0].mean()


def _gradients(apply: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> Any:
    return torch.autograd.grad(apply(), inputs)


def _time_parts(kernels: Any, hidden: Tensor, weight: Tensor) -> None:
    """Of a chunk of 4096 tokens, 896 wide."""
    weight, rows = weight.contiguous(), len(hidden)
    bf16 = hidden @ weight.T
    exact = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    total = torch.zeros(weight.shape, device="cuda")
    targets = torch.randint(0, len(weight), (rows,), device="cuda")
    ones = torch.ones(rows, device="cuda")
    parts: dict[str, Callable[[], Any]] = {
        "logits bf16": lambda: hidden @ weight.T,
        "logits f32": lambda: torch.mm(hidden, weight.T, out_dtype=torch.float32),
        "d hidden": lambda: bf16 @ weight,
        "d weight f32": lambda: torch.addmm(
            total, bf16.T, hidden, out_dtype=torch.float32, out=total
        ),
        "d weight bf16, added": lambda: total.add_(bf16.T @ hidden),
    }
    for block, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16), (16384, 16)):
        for name, logits in (("bf16", bf16), ("f32", exact)):
            label = f"{name} {block}/{warps}"
            parts[f"score {label}"] = _with(
                kernels, (block, warps), kernels.score, logits, None, targets, ones
            )
            more = (targets, ones, ones, ones, ones, ones)
            parts[f"slope {label}"] = _with(
                kernels, (block, warps), kernels.slope, logits, None, *more, dtype=torch.bfloat16
            )
    for name, work in parts.items():
        try:
            _say(part=name, ms=_milliseconds(work))
        except Exception as error:  # The others are to be seen, too.
            _say(part=name, error=str(error)[:300])


def _with(
    kernels: Any, shape: tuple[int, int], work: Callable[..., Any], *args: Any, **named: Any
) -> Callable[[], Any]:
    def run() -> Any:
        kernels.SCORE_BLOCK, kernels.SCORE_WARPS = shape
        kernels.SLOPE_BLOCK, kernels.SLOPE_WARPS = shape
        return work(*args, **named)

    return run


def _milliseconds(work: Callable[[], Any]) -> float:
    for _ in range(3):
        work()
    times = []
    for _ in range(9):
        event: Any = torch.cuda.Event
        began, ended = event(enable_timing=True), event(enable_timing=True)
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return round(float(statistics.median(times)), 3)


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)
