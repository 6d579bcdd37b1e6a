"""Computes the calls of a training on one rank. Rank 0 leads all ranks.

A `Computation` holds the network, the reference and the optimizer, or this rank's part of them. It
works on rows, and knows nothing of groups, advantages or files. All ranks run the same calls in the
same order, each on its own rows. All ranks compute the same number of rows: a rank without a row
computes a filler that does not count.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.training.microbatches import TrainedRow
from holdfast.training.model.network import Network
from holdfast.training.model.optimizer import Optimizer
from holdfast.training.objective.diagnostics import Diagnostics, DiagnosticTotals
from holdfast.training.objective.losses import LossParts, TokenBatch, kl_estimate
from holdfast.training.objective.objective import KlPlace, Objective
from holdfast.training.packing.rows import PackedRow, Segment
from holdfast.training.packing.tensors import to_tensor
from holdfast.training.ranks.group import RankGroup
from holdfast.training.settings import Lora, TrainerSettings

Loss = Callable[[TokenBatch, Objective], tuple[Tensor, LossParts]]
"""`policy_loss` or a custom loss."""
Rows = Sequence[TrainedRow | None]
"""The rows of one rank. None stands for a filler."""
_FILLER = PackedRow([0, 0], [0, 1], [Segment(0, 2)], [0], [0], [0], [0])


class Build(Struct, frozen=True, tag=True):
    """The call that makes the network and its optimizer."""

    folder: str
    settings: TrainerSettings
    device: str = "cpu"
    dtype: str = "float32"
    lora: Lora | None = None
    reference: str = ""
    gradient_checkpointing: bool = False
    loss: str = ""
    """The FILE:NAME of the user's own loss."""
    seed: int = 0


class Penalize(Struct, frozen=True, tag=True):
    """The call that computes the divergence of each of `sequences` sequences from the reference."""

    rows: list[TrainedRow | None]
    sequences: int


class Train(Struct, frozen=True, tag=True):
    """The call that computes one optimizer step. It makes one update for each entry of
    `updates`."""

    updates: list[list[TrainedRow | None]]
    rate: float


class GatherWeights(Struct, frozen=True, tag=True):
    """The call that gathers all trained weights on rank 0."""


class GatherState(Struct, frozen=True, tag=True):
    """The call that gathers the optimizer's moments on rank 0."""


class RestoreState(Struct, frozen=True, tag=True):
    """The call that restores the weights and moments that rank 0 has."""

    steps: dict[str, float]
    """The number of updates of each parameter."""


class Probe(Struct, frozen=True, tag=True):
    """The call that computes the logprob of the likeliest next token after beginnings of a
    sequence."""

    ids: list[int]
    lengths: list[int]


Call = Build | Penalize | Train | GatherWeights | GatherState | RestoreState | Probe


class KnownLogprobs(Struct, frozen=True):
    """The logprobs of each row under the old policy and the reference. An entry is None if the
    objective does not need it."""

    old: Sequence[Tensor | None]
    """The logprobs that the network gave before the step."""
    reference: Sequence[Tensor | None]


class StepNumbers(Struct, frozen=True):
    """The numbers of a step, over all ranks."""

    loss: float
    norms: list[float]
    """The norm of the gradients of each update."""
    diagnostics: dict[str, float]


class _Share(Struct, frozen=True):
    """The part of `StepNumbers` that one rank computed."""

    loss: float
    diagnostics: DiagnosticTotals


class Computation:
    """The computation of one rank. All ranks must create their `Computation` at the same time."""

    def __init__(self, build: Build, ranks: RankGroup, loss: Loss):
        torch.manual_seed(build.seed)
        # Otherwise MKL may use fewer threads while the machine is busy, which rounds differently.
        torch.set_num_threads(torch.get_num_threads())
        self.settings = build.settings
        self._ranks = ranks
        self._loss = loss
        options: dict[str, Any] = {
            "device": build.device,
            "dtype": getattr(torch, build.dtype),
            "longest": build.settings.row_tokens,
            "ranks": ranks,
        }
        self.network = Network(
            Path(build.folder),
            lora=build.lora,
            gradient_checkpointing=build.gradient_checkpointing,
            **options,
        )
        self.optimizer = Optimizer(self.network.parameters, build.settings.optimizer, ranks)
        self.reference = self._load_reference(build, options)

    def _load_reference(self, build: Build, options: dict[str, Any]) -> Network | None:
        """Loads the reference model. With LoRA, the reference may be the trained network without
        its adapter."""
        if not self.settings.objective.kl.coefficient:
            if build.reference:
                raise UsageError("a reference model is given, but the KL coefficient is 0")
            return None
        if not build.reference and self.network.lora is not None:
            return self.network
        folder = build.reference or build.folder
        network = Network(Path(folder), trained=False, **options)
        if network.vocabulary != self.network.vocabulary:
            raise UsageError(
                f"the reference {folder} has a vocabulary of {network.vocabulary}, the model "
                f"one of {self.network.vocabulary}"
            )
        return network

    def follow(self, call: Call) -> None:
        """Computes this rank's part of a call. Only ranks other than 0 call this method. They drop
        the result, because only rank 0 uses it."""
        if isinstance(call, Penalize):
            self.penalize(call)
        elif isinstance(call, Train):
            self.train(call)
        elif isinstance(call, GatherWeights):
            self.weights()
        elif isinstance(call, GatherState):
            self.optimizer.state()
        elif isinstance(call, RestoreState):
            self.optimizer.restore({}, {}, call.steps)
        else:
            assert isinstance(call, Probe), "a network is built once"
            self.network.best_logprobs(call.ids, call.lengths)

    def weights(self) -> dict[str, Tensor]:
        """Gathers the weights on rank 0, in the precision in which the optimizer keeps them.
        Afterwards, the whole network of rank 0 has these weights."""
        weights = self.optimizer.weights()
        if self._ranks.is_leader:
            self.network.take_whole(weights)
        return weights

    def penalize(self, call: Penalize) -> list[float]:
        """Returns, for each sequence, the sum of the divergence from the reference over its trained
        tokens."""
        kl = self.settings.objective.kl
        sums = [0.0] * call.sequences
        references = self._score(call.rows, self._reference_logprobs)
        for row, reference in zip(call.rows, references, strict=True):
            if row is None:
                continue
            recorded = to_tensor(row.engine_logprobs, self.network.device)
            values = kl_estimate(recorded, reference, kl.estimate)
            for sequence, value in zip(row.row.sequences, values.tolist(), strict=True):
                sums[sequence] += value
        # A sequence lies in one row, so the other ranks add 0 to its sum.
        totals: list[float] = self._ranks.add_up(torch.tensor(sums, dtype=torch.float64)).tolist()
        return totals

    def train(self, call: Train) -> StepNumbers:
        """Computes one optimizer step."""
        diagnostics, shares, waiting = Diagnostics(), [], []
        # Before the first update, because all updates use the same old logprobs.
        known = [self.known_logprobs(rows) for rows in call.updates]
        for number, (rows, logprobs) in enumerate(zip(call.updates, known, strict=True)):
            # The weights refer to the whole step, and each update gets its share.
            shares.append(
                self.backward(
                    rows, logprobs, diagnostics, scale=len(call.updates), has_moved=number > 0
                )
            )
            waiting.append(self.optimizer.update(call.rate))
        # So far, the GPU worked without waiting. Its numbers are read only now.
        loss = sum(sum(float(part) for part in share) for share in shares)
        norms = [float(norm) for norm in waiting]
        loss, diagnostics = self._of_all_ranks(loss, diagnostics)
        return StepNumbers(loss, norms, diagnostics.numbers() if self._ranks.is_leader else {})

    def _of_all_ranks(self, loss: float, diagnostics: Diagnostics) -> tuple[float, Diagnostics]:
        if self._ranks.size == 1:
            return loss, diagnostics
        own = _Share(loss, diagnostics.totals())
        messages = self._ranks.exchange(msgspec.msgpack.encode(own))
        shares = [msgspec.msgpack.decode(message, type=_Share) for message in messages]
        whole = Diagnostics()
        for share in shares:
            whole.add_totals(share.diagnostics)
        return sum(share.loss for share in shares), whole

    def known_logprobs(self, rows: Rows) -> KnownLogprobs:
        """Computes the logprobs that the loss compares with, if the objective needs them."""
        objective = self.settings.objective
        old: Sequence[Tensor | None] = [None] * len(rows)
        reference = old
        if objective.recompute_old:
            old = self._score(rows, self.network.logprobs)
        if self.reference is not None and objective.kl.place is KlPlace.LOSS:
            reference = self._score(rows, self._reference_logprobs)
        return KnownLogprobs(old, reference)

    def backward(
        self,
        rows: Rows,
        known: KnownLogprobs,
        diagnostics: Diagnostics,
        *,
        scale: int = 1,
        has_moved: bool = False,
    ) -> list[Tensor]:
        """Accumulates the gradients of an update, and returns the parts of its loss. `has_moved`
        says whether an earlier update of the same step has changed the weights."""
        tensors = []
        for row, old, reference in zip(rows, known.old, known.reference, strict=True):
            logprobs, entropy = self.network.logprobs(*self._inputs(row))
            if row is None:
                # A filler row does not count, but runs through all layers like the rows of other
                # ranks.
                (logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
                continue
            batch = self._batch(row, logprobs)
            batch.entropy, batch.old_logprobs, batch.reference_logprobs = entropy, old, reference
            if has_moved and old is None:
                batch.fresh = torch.zeros_like(logprobs, dtype=torch.bool)
            loss, parts = self._loss(batch, self.settings.objective)
            (loss * scale).backward()  # type: ignore[no-untyped-call]
            tensors.append(loss.detach())
            diagnostics.add(batch, parts)
        return tensors

    def _batch(self, row: TrainedRow, logprobs: Tensor) -> TokenBatch:
        device = self.network.device
        lengths = torch.tensor(row.lengths, dtype=torch.int64)

        def spread(values: Sequence[float]) -> Tensor:
            return to_tensor(torch.tensor(values).repeat_interleave(lengths), device)

        return TokenBatch(
            logprobs=logprobs,
            engine_logprobs=to_tensor(row.engine_logprobs, device),
            advantages=to_tensor(row.advantages, device),
            weights=spread(row.weights),
            sequences=spread(range(len(row.lengths))),
            fresh=spread(row.fresh).bool(),
        )

    def _inputs(self, row: TrainedRow | None) -> tuple[PackedRow, Tensor]:
        packed, warmth = (_FILLER, [1.0]) if row is None else (row.row, row.temperatures)
        return packed, to_tensor(warmth, self.network.device)

    @torch.no_grad()
    def _score(
        self, rows: Rows, logprobs: Callable[[PackedRow, Tensor], tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        return [logprobs(*self._inputs(row))[0] for row in rows]

    def _reference_logprobs(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        assert self.reference is not None, "the objective has a KL term"
        if self.reference is self.network:
            with self.network.without_adapter():
                return self.network.logprobs(row, temperature)
        return self.reference.logprobs(row, temperature)
