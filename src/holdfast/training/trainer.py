"""Trainer: one optimizer step from groups of trajectories, on one device.

It knows nothing of journals, engines or files: groups go in, numbers come out. The same groups and
the same weights give the same step, bit for bit on one CPU.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec import Struct, structs
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.training.batch import (
    TrainedSequence,
    TrainingGroup,
    sequences_of,
)
from holdfast.training.model.network import Network
from holdfast.training.model.optimizer import Optimizer
from holdfast.training.objective.diagnostics import Diagnostics
from holdfast.training.objective.losses import LossParts, TokenBatch, kl_estimate, policy_loss
from holdfast.training.objective.objective import KlPlace, Objective
from holdfast.training.packing.rows import PackedRow, pack
from holdfast.training.settings import Lora, TrainerSettings

Loss = Callable[[TokenBatch, Objective], tuple[Tensor, LossParts]]
"""`policy_loss`, or one of your own."""


class StepResult(Struct, frozen=True):
    """What a step did."""

    loss: float
    numbers: dict[str, float]
    skipped_updates: int
    """Updates whose gradients were not finite."""
    seconds: float
    tokens: int
    """Trained tokens."""


class _Pass:
    """The rows of one optimizer update, with what is known of each trained token."""

    def __init__(self, sequences: Sequence[TrainedSequence], rows: Sequence[PackedRow]):
        self.sequences = sequences
        self.rows = rows
        self.old: dict[int, Tensor] = {}
        self.reference: dict[int, Tensor] = {}


class Trainer:
    """Holds a network and its optimizer."""

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
        seed: int = 0,
    ):
        torch.manual_seed(seed)
        self.settings = settings
        self.network = Network(
            folder,
            device=device,
            dtype=dtype,
            lora=lora,
            gradient_checkpointing=gradient_checkpointing,
        )
        self.optimizer = Optimizer(self.network.parameters, settings.optimizer)
        self.step_number = 0
        self.skipped_updates = 0
        self._loss = loss
        self._reference = self._load_reference(folder, reference, device=device, dtype=dtype)

    def _load_reference(
        self, folder: Path, reference: Path | None, *, device: str, dtype: torch.dtype
    ) -> Network | None:
        """The model to stay near to; with LoRA, the network without its adapter is one."""
        if not self.settings.objective.kl.coefficient:
            if reference is not None:
                raise UsageError("a reference model is given, but the KL coefficient is 0")
            return None
        if reference is None and self.network.lora is not None:
            return self.network
        network = Network(reference or folder, device=device, dtype=dtype, trained=False)
        if network.vocabulary != self.network.vocabulary:
            raise UsageError(
                f"the reference {reference} has a vocabulary of {network.vocabulary}, the model "
                f"one of {self.network.vocabulary}"
            )
        return network

    def step(self, groups: Sequence[TrainingGroup]) -> StepResult:
        """Trains on `groups`, in one or more updates. Raises before anything has changed."""
        began = time.monotonic()
        sequences = self._sequences(groups)
        diagnostics, loss, skipped, norms = Diagnostics(), 0.0, 0, []
        rate = self.settings.optimizer.rate(self.step_number, steps=self.settings.steps)
        passes = self._passes(sequences)
        for work in passes:
            # The weights are of the whole step, of which each update has its share.
            loss += self._backward(work, diagnostics, scale=len(passes))
            norm, is_done = self.optimizer.update(rate)
            norms.append(norm)
            skipped += not is_done
        self.step_number += 1
        self.skipped_updates += skipped
        numbers = {
            "gradient_norm": max(norms, default=0.0),
            "learning_rate": rate,
            **diagnostics.numbers(),
        }
        tokens = sum(len(s.tokens.trained) for s in sequences)
        return StepResult(loss, numbers, skipped, time.monotonic() - began, tokens)

    def _sequences(self, groups: Sequence[TrainingGroup]) -> list[TrainedSequence]:
        penalties = self._reward_penalties(groups) if self._penalizes_reward else None
        found = sequences_of(
            groups,
            self.settings.objective,
            truncation=self.settings.truncation,
            overlong=self.settings.overlong,
            penalties=penalties,
            max_tokens=self.settings.row_tokens,
        )
        wrong = max((max(s.tokens.ids) for s in found), default=0)
        if wrong >= self.network.vocabulary:
            raise UsageError(
                f"token {wrong} is beyond the model's vocabulary of {self.network.vocabulary}: the "
                "engine samples from another model or tokenizer than the one that is trained"
            )
        return found

    @property
    def _penalizes_reward(self) -> bool:
        kl = self.settings.objective.kl
        return bool(kl.coefficient) and kl.place is KlPlace.REWARD

    def _reward_penalties(self, groups: Sequence[TrainingGroup]) -> list[list[float]]:
        """The divergence from the reference over each trajectory, times the coefficient."""
        kl = self.settings.objective.kl
        plain = sequences_of(groups, Objective(), max_tokens=self.settings.row_tokens)
        work = self._packed(plain)
        self._fill(work.reference, work.rows, work.sequences, self._reference_logprobs)
        sums = [0.0] * len(plain)
        for number, row in enumerate(work.rows):
            batch = self._tokens(work, row, number, logprobs=None)
            found = kl_estimate(batch.engine_logprobs, work.reference[number], kl.estimate)
            for sequence, value in zip(row.sequences, found.tolist(), strict=True):
                sums[sequence] += value
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

    def _passes(self, sequences: Sequence[TrainedSequence]) -> list[_Pass]:
        """The sequences divided among the updates by family; each with its old logprobs, which
        are those before the first update."""
        objective = self.settings.objective
        if not objective.kl.coefficient and not objective.entropy:
            # Without an advantage there is no gradient; the weights of the others know of them.
            sequences = [s for s in sequences if s.advantage]
        families = sorted({s.tokens.family for s in sequences})
        count = min(self.settings.updates, len(families)) or 1
        parts = [set(families[n::count]) for n in range(count)]
        passes = [self._packed([s for s in sequences if s.tokens.family in p]) for p in parts]
        for work in passes:
            if objective.recompute_old:
                self._fill(work.old, work.rows, work.sequences, self.network.logprobs)
            if self._reference is not None and objective.kl.place is KlPlace.LOSS:
                self._fill(work.reference, work.rows, work.sequences, self._reference_logprobs)
        return passes

    def _packed(self, sequences: Sequence[TrainedSequence]) -> _Pass:
        tokens = [s.tokens for s in sequences]
        if self.network.why_sequential:
            single = [pack([sequence], budget=len(sequence.ids))[0] for sequence in tokens]
            rows = [
                structs.replace(row, sequences=[number] * len(row.targets))
                for number, row in enumerate(single)
            ]
        else:
            rows = pack(tokens, budget=self.settings.row_tokens, share=self.settings.share_prefixes)
        return _Pass(sequences, rows)

    def _backward(self, work: _Pass, diagnostics: Diagnostics, *, scale: int) -> float:
        """Accumulates the gradients of an update; its loss."""
        total = 0.0
        for number, row in enumerate(work.rows):
            logprobs, entropy = self.network.logprobs(row, self._temperatures(work.sequences, row))
            batch = self._tokens(work, row, number, logprobs=logprobs)
            batch.entropy = entropy
            loss, parts = self._loss(batch, self.settings.objective)
            (loss * scale).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            diagnostics.add(batch, parts)
        return total

    def _tokens(
        self, work: _Pass, row: PackedRow, number: int, *, logprobs: Tensor | None
    ) -> TokenBatch:
        device = self.network.device
        sequences = [work.sequences[s] for s in row.sequences]
        recorded = [s.engine_logprobs[i] for s, i in zip(sequences, row.indices, strict=True)]
        engine = torch.tensor(recorded, device=device)
        order: dict[int, int] = {}
        local = [order.setdefault(s, len(order)) for s in row.sequences]
        return TokenBatch(
            logprobs=engine if logprobs is None else logprobs,
            engine_logprobs=engine,
            advantages=torch.tensor([s.advantage for s in sequences], device=device),
            weights=torch.tensor([s.weight for s in sequences], device=device),
            sequences=torch.tensor(local, device=device),
            old_logprobs=work.old.get(number),
            reference_logprobs=work.reference.get(number),
        )

    def _temperatures(self, sequences: Sequence[TrainedSequence], row: PackedRow) -> Tensor:
        places = zip(row.sequences, row.indices, strict=True)
        found = [sequences[number].temperatures[index] for number, index in places]
        return torch.tensor(found, device=self.network.device)

    @torch.no_grad()
    def _fill(
        self,
        store: dict[int, Tensor],
        rows: Sequence[PackedRow],
        sequences: Sequence[TrainedSequence],
        logprobs: Callable[[PackedRow, Tensor], tuple[Tensor, Tensor]],
    ) -> None:
        for number, row in enumerate(rows):
            store[number] = logprobs(row, self._temperatures(sequences, row))[0]

    def _reference_logprobs(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        assert self._reference is not None, "the objective has a KL term"
        if self._reference is self.network:
            with self.network.without_adapter():
                return self.network.logprobs(row, temperature)
        return self._reference.logprobs(row, temperature)
