"""The trainer computes one optimizer step from groups of trajectories, on one rank or several.

It knows no journals, engines or files: it takes groups and returns numbers. The same groups and
weights give the same step. On one CPU with the same number of ranks, the step is the same bit for
bit.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import UsageError
from holdfast.training.batch import (
    TrainedSequence,
    TrainingGroup,
    sequences_of,
)
from holdfast.training.computation import (
    Build,
    Call,
    Computation,
    GatherState,
    GatherWeights,
    Loss,
    Penalize,
    Probe,
    RestoreState,
    Train,
)
from holdfast.training.microbatches import Rounds, TrainedRow, deal
from holdfast.training.model.network import Network
from holdfast.training.model.optimizer import Optimizer, steps_of
from holdfast.training.objective.losses import policy_loss
from holdfast.training.objective.objective import KlPlace, Objective
from holdfast.training.ranks.group import RankGroup
from holdfast.training.settings import Lora, TrainerSettings

Result = TypeVar("Result")


class StepResult(Struct, frozen=True):
    """The results of a step."""

    loss: float
    numbers: dict[str, float]
    updates: int
    skipped_updates: int
    """The number of updates whose gradients were not finite."""
    seconds: float
    tokens: int
    """The number of trained tokens."""


class Trainer:
    """Leads the ranks. Each rank holds a network and its optimizer, or a part of them."""

    @checks_arguments()
    def __init__(
        self,
        folder: Path,
        settings: TrainerSettings,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        lora: Lora | None = None,
        reference: Path | None = None,
        gradient_checkpointing: bool = False,
        loss: Loss = policy_loss,
        loss_file: str = "",
        seed: int = 0,
        ranks: RankGroup | None = None,
    ):
        """`loss_file` is the FILE:NAME from which the other ranks import a custom loss."""
        self.settings = settings
        self.ranks = ranks or RankGroup()
        build = Build(
            str(folder),
            settings,
            device=device,
            dtype=str(dtype).removeprefix("torch."),
            lora=lora,
            reference="" if reference is None else str(reference),
            gradient_checkpointing=gradient_checkpointing,
            loss=loss_file,
            seed=seed,
        )
        self.computation = self._together(build, lambda: Computation(build, self.ranks, loss))
        self.step_number = 0
        self.skipped_updates = 0

    @property
    def network(self) -> Network:
        return self.computation.network

    @property
    def optimizer(self) -> Optimizer:
        return self.computation.optimizer

    def _together(self, call: Call, own: Callable[[], Result]) -> Result:
        """Sends all ranks the same call, and runs `own` on this rank."""
        return self._share([call] * self.ranks.size, own)

    def _share(self, calls: Sequence[Call], own: Callable[[], Result]) -> Result:
        """Sends each rank its own call, and runs `own` on this rank. Raises `RankDied` if another
        rank died."""
        if self.ranks.size == 1:
            return own()
        with self.ranks.together():
            self.ranks.send([msgspec.msgpack.encode(call) for call in calls])
            return own()

    def weights(self) -> dict[str, Tensor]:
        """Gathers all trained weights, in the precision in which the optimizer keeps them.
        Afterwards, the network from which versions are written has these weights."""
        return self._together(GatherWeights(), self.computation.weights)

    def optimizer_state(self) -> dict[str, Tensor]:
        """Gathers the whole state of the optimizer."""
        return self._together(GatherState(), self.optimizer.state)

    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Restores what `weights` and `optimizer_state` returned. The number of ranks may differ.
        Raises `UsageError` if the tensors do not fit."""
        self.optimizer.check(weights)
        steps = steps_of(state)
        self._together(RestoreState(steps), lambda: self.optimizer.restore(weights, state, steps))

    def best_logprobs(self, ids: Sequence[int], lengths: Sequence[int]) -> list[float]:
        """Returns, for each length in `lengths`, the logprob of the likeliest token after the first
        `length` tokens of `ids`."""
        probe = Probe(list(ids), list(lengths))
        return self._together(probe, lambda: self.network.best_logprobs(ids, lengths))

    @checks_arguments()
    def step(self, groups: Sequence[TrainingGroup], *, version: str | None = None) -> StepResult:
        """Trains on `groups`, in one or more updates. `version` is the name of the present weights;
        the measured gap counts only tokens that these weights sampled. Errors are raised before
        anything has changed."""
        began = time.monotonic()
        sequences = self._sequences(groups, version)
        rate = self.settings.optimizer.rate(self.step_number, steps=self.settings.steps)
        updates = [self._deal(part) for part in self._parts(sequences)]
        calls = [Train(rows, rate) for rows in _by_rank(updates, self.ranks.size)]
        result = self._share(calls, lambda: self.computation.train(calls[0]))
        skipped = sum(not math.isfinite(norm) for norm in result.norms)
        self.step_number += 1
        self.skipped_updates += skipped
        numbers = {
            "gradient_norm": max(result.norms, default=0.0),
            "learning_rate": rate,
            **result.diagnostics,
        }
        tokens = sum(len(s.tokens.trained) for s in sequences)
        return StepResult(
            result.loss, numbers, len(result.norms), skipped, time.monotonic() - began, tokens
        )

    def _sequences(
        self, groups: Sequence[TrainingGroup], version: str | None = None
    ) -> list[TrainedSequence]:
        penalties = self._reward_penalties(groups) if self._penalizes_reward else None
        sequences = sequences_of(
            groups,
            self.settings.objective,
            truncation=self.settings.truncation,
            overlong=self.settings.overlong,
            discount=self.settings.discount,
            penalties=penalties,
            max_tokens=self.settings.row_tokens,
            version=version,
        )
        wrong = max((max(s.tokens.ids) for s in sequences), default=0)
        if wrong >= self.network.vocabulary:
            raise UsageError(
                f"token {wrong} is beyond the model's vocabulary of {self.network.vocabulary}: the "
                "engine samples from another model or tokenizer than the one that is trained"
            )
        return sequences

    @property
    def _penalizes_reward(self) -> bool:
        kl = self.settings.objective.kl
        return bool(kl.coefficient) and kl.place is KlPlace.REWARD

    def _reward_penalties(self, groups: Sequence[TrainingGroup]) -> list[list[float]]:
        """Returns the penalty of each trajectory: its divergence from the reference, times the
        coefficient."""
        kl = self.settings.objective.kl
        plain = sequences_of(groups, Objective(), max_tokens=self.settings.row_tokens)
        rows = _by_rank([self._deal(plain)], self.ranks.size)
        calls = [Penalize(own, len(plain)) for (own,) in rows]
        sums = self._share(calls, lambda: self.computation.penalize(calls[0]))
        by_branch = iter(sums)
        return [
            [
                0.0
                if t.reward is None
                else kl.coefficient * sum(next(by_branch) for s in t.samples if any(s.loss_mask))
                for t in group.trajectories
            ]
            for group in groups
        ]

    def _parts(self, sequences: Sequence[TrainedSequence]) -> list[list[TrainedSequence]]:
        """Divides the sequences among the updates. All sequences of a family are in the same
        update. Leaves out sequences that have no gradient."""
        objective = self.settings.objective
        if not objective.kl.coefficient and not objective.entropy:
            # A sequence without an advantage has no gradient, and the weights of the others already
            # account for it.
            sequences = [s for s in sequences if any(s.advantages)]
        families = sorted({s.tokens.family for s in sequences})
        count = min(self.settings.updates, len(families)) or 1
        parts = [set(families[n::count]) for n in range(count)]
        return [[s for s in sequences if s.tokens.family in part] for part in parts]

    def _deal(self, sequences: Sequence[TrainedSequence]) -> Rounds:
        return deal(
            sequences,
            ranks=self.ranks.size,
            budget=self.settings.row_tokens,
            share=self.settings.share_prefixes,
            hidden=self.network.hidden_size,
            one_by_one=bool(self.network.why_sequential),
        )


def _by_rank(updates: Sequence[Rounds], size: int) -> list[list[list[TrainedRow | None]]]:
    """Groups the rows of every update by rank."""
    return [[[together[rank] for together in rounds] for rounds in updates] for rank in range(size)]
