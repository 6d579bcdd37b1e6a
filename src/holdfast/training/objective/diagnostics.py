"""Diagnostics: what a step's tokens say about its health, gathered over its micro-batches."""

import torch
from torch import Tensor

from holdfast.training.objective.losses import LossParts, TokenBatch

QUANTILES = (0.01, 0.5, 0.99)


class Diagnostics:
    """Gathers micro-batches and gives the numbers of the whole step."""

    def __init__(self) -> None:
        self._ratio: list[Tensor] = []
        self._gap: list[Tensor] = []
        self._sums: dict[str, float] = {}
        self._tokens = 0

    def add(self, batch: TokenBatch, parts: LossParts) -> None:
        trained = batch.logprobs.detach()
        trainer = trained if batch.old_logprobs is None else batch.old_logprobs
        positive = batch.advantages > 0
        negative = batch.advantages < 0
        self._tokens += trained.numel()
        self._ratio.append(parts.ratio.cpu())
        self._gap.append((trainer - batch.engine_logprobs).abs().cpu())
        self._count("clipped_positive", parts.clipped & positive)
        self._count("clipped_negative", parts.clipped & negative)
        self._count("masked", ~parts.kept)
        if parts.kl is not None:
            self._count("kl", parts.kl)
        if batch.entropy is not None:
            self._count("entropy", batch.entropy.detach())

    def _count(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())

    def numbers(self) -> dict[str, float]:
        """Means over the tokens of the step, under the names that metrics have."""
        if not self._tokens:
            return {}
        found = {name: total / self._tokens for name, total in self._sums.items()}
        ratio, gap = torch.cat(self._ratio).float(), torch.cat(self._gap).float()
        points = _quantiles(ratio)
        found |= {f"ratio_p{share * 100:g}": points[share] for share in QUANTILES}
        found["gap_mean"], found["gap_max"] = float(gap.mean()), float(gap.max())
        return found


def _quantiles(values: Tensor) -> dict[float, float]:
    """By rank: torch.quantile refuses more than 16 million values."""
    ordered = values.sort().values
    last = len(ordered) - 1
    return {share: float(ordered[round(share * last)]) for share in QUANTILES}
