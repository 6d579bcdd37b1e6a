"""Random batches, as our flat tensors and as the padded ones of other libraries."""

import random

import torch
from torch import Tensor

from holdfast.training.batch import sequence_weights
from holdfast.training.objective.losses import TokenBatch
from holdfast.training.objective.objective import Objective

SEEDS = range(20)


class Case:
    """A batch of groups of unequal size, with trajectories of unequal length. float64.

    Padded tensors are [trajectories, longest]; `mask` says which of their tokens are trained, and
    has holes, as tools that answer in between leave them.
    """

    def __init__(self, seed: int, *, one_token: bool = False, tokens_of_others: bool = True):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        sizes = [chance.randint(1, 6) for _ in range(chance.randint(2, 5))]
        # One group has rewards that are all equal.
        self.rewards = [
            [1.0] * size if not number else [chance.choice([0.0, 0.25, 1.0]) for _ in range(size)]
            for number, size in enumerate(sizes)
        ]
        self.groups = [number for number, size in enumerate(sizes) for _ in range(size)]
        rows, longest = len(self.groups), 1 if one_token else 12
        self.mask = torch.zeros(rows, longest, dtype=torch.float64)
        for row in range(rows):
            length = chance.randint(1, longest)
            self.mask[row, :length] = 1
            if tokens_of_others and length > 4:
                self.mask[row, 2:4] = 0
        self.engine = -3 * torch.rand(rows, longest, dtype=torch.float64)
        self.old = self.engine + 0.3 * torch.randn(rows, longest, dtype=torch.float64)
        self.new = self.old + 0.5 * torch.randn(rows, longest, dtype=torch.float64)
        self.reference = self.new + 0.5 * torch.randn(rows, longest, dtype=torch.float64)
        self.advantages = torch.randn(rows, 1, dtype=torch.float64).expand(rows, longest)

    @property
    def flat_rewards(self) -> list[float]:
        return [reward for group in self.rewards for reward in group]

    @property
    def lengths(self) -> list[int]:
        return [int(count) for count in self.mask.sum(-1).tolist()]

    def flat(self, objective: Objective, logprobs: Tensor, *, recomputed: bool) -> TokenBatch:
        """The same tokens for `policy_loss`."""
        chosen = self.mask.bool()
        weights = sequence_weights([[n] for n in self.lengths], objective.mean, objective.constant)
        rows = torch.arange(len(chosen))[:, None].expand_as(chosen)
        per_row = torch.tensor([first for (first,) in weights], dtype=torch.float64)
        return TokenBatch(
            logprobs=logprobs[chosen],
            engine_logprobs=(self.engine if recomputed else self.old)[chosen],
            old_logprobs=self.old[chosen] if recomputed else None,
            advantages=self.advantages[chosen],
            weights=per_row[rows[chosen]],
            sequences=rows[chosen],
            reference_logprobs=self.reference[chosen] if objective.kl.coefficient else None,
        )
