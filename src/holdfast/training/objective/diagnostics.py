"""Computes numbers about the health of a step, from the tokens of its micro-batches.

No number is read from the device before the end, because a read waits for all work of the device.
"""

import numpy
import torch
from msgspec import Struct
from torch import Tensor

from holdfast.training.objective.losses import LossParts, TokenBatch

QUANTILES = (0.01, 0.5, 0.99)
_STALE = -1.0
"""Marks the gap of a token that other weights have sampled."""


class DiagnosticTotals(Struct, frozen=True):
    """The totals of a `Diagnostics`, which one process sends to another."""

    tokens: int
    sums: dict[str, float]
    ratio: bytes
    gap: bytes


class Diagnostics:
    """Gathers micro-batches and gives the numbers of the whole step."""

    def __init__(self) -> None:
        self._ratio: list[Tensor] = []
        self._gap: list[Tensor] = []
        self._sums: dict[str, Tensor] = {}
        self._tokens = 0

    def add(self, batch: TokenBatch, parts: LossParts) -> None:
        trained = batch.logprobs.detach()
        trainer = trained if batch.old_logprobs is None else batch.old_logprobs
        positive = batch.advantages > 0
        negative = batch.advantages < 0
        self._tokens += trained.numel()
        self._ratio.append(parts.ratio)
        gap = (trainer - batch.engine_logprobs).abs()
        self._gap.append(gap if batch.fresh is None else gap.masked_fill(~batch.fresh, _STALE))
        self._count("clipped_positive", parts.clipped & positive)
        self._count("clipped_negative", parts.clipped & negative)
        self._count("masked", ~parts.kept)
        if parts.kl is not None:
            self._count("kl", parts.kl)
        if batch.entropy is not None:
            self._count("entropy", batch.entropy.detach())

    def _count(self, name: str, values: Tensor) -> None:
        total = values.double().sum()
        self._sums[name] = self._sums[name] + total if name in self._sums else total

    def totals(self) -> DiagnosticTotals:
        """Returns the totals for another process, which adds them to its own."""
        sums = {name: float(total) for name, total in self._sums.items()}
        return DiagnosticTotals(self._tokens, sums, _as_bytes(self._ratio), _as_bytes(self._gap))

    def add_totals(self, totals: DiagnosticTotals) -> None:
        self._tokens += totals.tokens
        self._ratio.append(_from_bytes(totals.ratio))
        self._gap.append(_from_bytes(totals.gap))
        for name, total in totals.sums.items():
            self._count(name, torch.tensor(total, dtype=torch.float64))

    def numbers(self) -> dict[str, float]:
        """Returns means over the tokens of the step, under the names that metrics have."""
        if not self._tokens:
            return {}
        numbers = {name: float(total) / self._tokens for name, total in self._sums.items()}
        ratio, gap = torch.cat(self._ratio).float(), torch.cat(self._gap).float()
        points = _quantiles(ratio)
        numbers |= {f"ratio_p{share * 100:g}": points[share] for share in QUANTILES}
        if len(gap := gap[gap != _STALE]):
            numbers["gap_mean"], numbers["gap_max"] = float(gap.mean()), float(gap.max())
        return numbers


def _as_bytes(values: list[Tensor]) -> bytes:
    return torch.cat(values).float().cpu().numpy().tobytes() if values else b""


def _from_bytes(values: bytes) -> Tensor:
    return torch.from_numpy(numpy.frombuffer(values, dtype=numpy.float32).copy())


def _quantiles(values: Tensor) -> dict[float, float]:
    """Returns quantiles by sorting, because torch.quantile refuses more than 16 million values."""
    ordered = values.sort().values
    last = len(ordered) - 1
    return {share: float(ordered[round(share * last)]) for share in QUANTILES}
