"""The gap between engine and trainer is the health signal of a training.

The engine's recorded logprobs and the trainer's own logprobs are for the same tokens and the same
weights. They differ only by rounding, unless one side computes another model. Every step checks the
mean gap. If rollouts run ahead, the step's tokens were sampled by older weights than those that are
trained. In this case, `GapWatch` asks the engines that have the present weights for the next token
after beginnings of the step's longest sequences. If the gap is wider than the data types explain,
the model's own forward pass in float32 judges which side is wrong. The judge reads the published
folder of the weights, and does not depend on how either side computes.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import torch
from msgspec import Struct

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.logprobs_probe import likeliest
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import EngineError, InvalidAnswer
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.samples.nearness import Gap, coarsest, explained, gap_between
from holdfast.training.batch import TrainedSequence, TrainingGroup, is_sampled_by, sequences_of
from holdfast.training.model.network import Network
from holdfast.training.model.plain import alone, load_model, plain_logprobs
from holdfast.training.objective.objective import Objective
from holdfast.training.packing.rows import TokenSequence, pack
from holdfast.training.run.batches import StepBatch
from holdfast.training.settings import OnGap, TrainingSettings
from holdfast.training.trainer import Trainer
from holdfast.weights.version import WeightFolder

JUDGED_TOKENS = {"cpu": 4096, "cuda": 65536}
"""About how many tokens the judge reads. It takes the longest sequences."""
NOISIER = 2.0
"""How many times farther from float32 a correct side may be than the model's own pass in the same
data type."""
ENGINE_SECONDS = 120.0
EMBEDDED_TOKENS = 512
"""The largest number of tokens in a comparison with the embedded engine. All its slots keep as much
memory as the longest sequence of any slot needed."""
ASKED_SEQUENCES = 8
"""The number of sequences of a step that an engine is asked about, each at two lengths."""
PROBED_BY_WEIGHTS = 192
"""Beginnings up to this length are already compared whenever an engine gets weights."""


class GapTooWide(HoldfastError):
    """Engine and trainer compute different models."""


class GapVerdict(Struct, frozen=True):
    """The distance of both sides from the model's own forward pass in float32, on the same
    tokens."""

    tokens: int
    engine: Gap
    trainer: Gap
    allowed: float
    """The mean gap that is allowed, in nats."""
    refused: str = ""
    """Why the trainer cannot compute the model at all; "" if it can."""

    @property
    def engine_is_wrong(self) -> bool:
        return not self.engine.mean <= self.allowed

    @property
    def trainer_is_wrong(self) -> bool:
        return bool(self.refused) or not self.trainer.mean <= self.allowed

    @property
    def text(self) -> str:
        sides = {"engine": self.engine_is_wrong, "trainer": self.trainer_is_wrong}
        wrong = [side for side, is_wrong in sides.items() if is_wrong]
        names = "neither is wrong" if not wrong else f"the {' and the '.join(wrong)} "
        verb = "" if not wrong else "are wrong" if len(wrong) > 1 else "is wrong"
        return (
            f"{names}{verb}: from the model's own forward pass in float32, over {self.tokens:,} "
            f"tokens, the engine is off by {self.engine.text}, the trainer by "
            f"{self.refused or self.trainer.text}; {self.allowed:.2g} are allowed on average"
        )


class GapWatch:
    """Watches the gap of one training."""

    def __init__(self, settings: TrainingSettings, *, report: Callable[[str], None]):
        self._settings = settings
        self._report = report
        self._accepted = 0.0
        """The widest gap that is accepted so far, because the judge or the user accepted it."""

    def check(
        self,
        step: int,
        gap: float | None,
        batch: StepBatch,
        *,
        version: WeightFolder,
        dtypes: Sequence[str],
    ) -> None:
        """Raises `GapTooWide` before anything of the step is saved. `gap` is None if the weights
        `version` sampled no token of the step. `dtypes` are the engines' data types, as far as they
        are known."""
        if gap is not None:
            fresh = _fresh(batch.groups, version.name)
            self._check(step, gap, fresh, version=version, dtypes=dtypes)

    def _check(
        self,
        step: int,
        gap: float,
        sequences: Sequence[TrainedSequence],
        *,
        version: WeightFolder,
        dtypes: Sequence[str],
    ) -> None:
        types = (self._settings.dtype, *(dtypes or ("",)))
        limit = max(explained(*types), self._accepted)
        if gap <= limit:
            return
        longest = _longest(sequences, self._settings.device)
        verdict = judge(version.path, longest, self._settings, coarsest(*types))
        self._accepted = 2 * gap if math.isfinite(gap) else math.inf
        if not verdict.engine_is_wrong and not verdict.trainer_is_wrong:
            self._report(f"step {step}: a mean gap of {gap:.2g} nats is rounding: {verdict.text}")
            return
        self._stop(
            f"step {step}: the logprobs of engine and trainer are {gap:.2g} nats apart on average, "
            f"and {coarsest(*types)} explains {explained(*types):.2g}: {verdict.text}"
        )

    async def questions(
        self, batch: StepBatch, trainer: Trainer, *, version: WeightFolder
    ) -> "list[Question]":
        """Returns prompts from a batch to send to the engines, with the trainer's own logprobs.
        Returns an empty list if the weights `version` sampled part of the batch, because `check`
        compares those tokens."""
        trajectories = chain.from_iterable(group.trajectories for group in batch.groups)
        samples = [s for t in trajectories for s in t.samples if any(s.loss_mask)]
        if any(is_sampled_by(sample, version.name) for sample in samples):
            return []
        longest = sorted((s.token_ids for s in samples), key=len)[-ASKED_SEQUENCES:]
        return await asyncio.to_thread(_answered, longest, trainer)

    async def ask(
        self,
        step: int,
        questions: "Sequence[Question]",
        policy: EnginePolicy,
        *,
        version: WeightFolder,
        dtypes: Sequence[str],
    ) -> dict[str, float]:
        """Sends `questions` to the engines that have the weights `version`. Returns the gap as
        numbers of the step, or nothing if no engine answers. The numbers have names of their own,
        because no engine is asked when a step is trained again. Raises `GapTooWide`."""
        own: list[float] = []
        sequences: list[TrainedSequence] = []
        for endpoint in policy.endpoints:
            short = [q for q in questions if len(q.ids) <= _room(endpoint)]
            if not short or endpoint.weights != version.name:
                continue
            replies = await self._replies(endpoint, [q.ids for q in short])
            if endpoint.weights != version.name:  # It was restarted.
                continue
            sequences += [q.answered(*reply) for q, reply in zip(short, replies, strict=False)]
            own += [q.logprob for q in short[: len(replies)]]
        if not sequences:
            return {}
        gap = gap_between([s.engine_logprobs[0] for s in sequences], own)
        await asyncio.to_thread(
            self._check, step, gap.mean, sequences, version=version, dtypes=dtypes
        )
        return {"asked_gap_mean": gap.mean, "asked_gap_max": gap.worst}

    async def _replies(
        self, endpoint: Endpoint, prompts: Sequence[Sequence[int]]
    ) -> list[tuple[int, float]]:
        """Returns the likeliest token after each prompt, with its logprob. If the engine does not
        answer, reports why and returns an empty list."""
        name = endpoint.model_name
        try:
            return await asyncio.gather(
                *(likeliest(endpoint, ids, model=name, seconds=ENGINE_SECONDS) for ids in prompts)
            )
        except (*UNREACHABLE, EngineError, InvalidAnswer) as error:
            self._report(
                f"{endpoint.name} is not compared with the trainer at {max(map(len, prompts)):,} "
                f"tokens: {describe_error(error)}"
            )
            return []

    async def compare(self, policy: EnginePolicy, trainer: Trainer, dtypes: Sequence[str]) -> None:
        """Compares the logprobs of engines and trainer before any rollout is sampled, along one
        sequence as long as in the trial. Skips an engine that cannot be reached, which is compared
        in later steps. Raises `GapTooWide`."""
        types = (self._settings.dtype, *(dtypes or ("",)))
        for endpoint in policy.endpoints:
            lengths = _lengths(min(_room(endpoint), trainer.network.trial.length))
            ids = trainer.network.trial.sequences[0].ids
            if not lengths or not endpoint.breaker.is_passing:
                continue
            own = await asyncio.to_thread(trainer.best_logprobs, ids[: lengths[-1]], lengths)
            replies = await self._replies(endpoint, [ids[:length] for length in lengths])
            if not replies:
                continue
            gap = gap_between([logprob for _, logprob in replies], own)
            if not gap.mean <= NOISIER * explained(*types):
                self._stop(
                    f"{endpoint.name} and the trainer give other logprobs after {lengths[0]:,} to "
                    f"{lengths[-1]:,} tokens: {gap.text} apart, and {coarsest(*types)} explains "
                    f"{explained(*types):.2g}; the trainer agrees with the model's own forward "
                    "pass there, so the engine is wrong: see that it serves the same files, with "
                    "the same encoding of positions, for as many tokens"
                )

    def _stop(self, why: str) -> None:
        if self._settings.on_gap is OnGap.WARN:
            self._report(f"{why}; training goes on (--on-gap warn)")
            return
        raise GapTooWide(f"{why}. Nothing of it is saved; --on-gap warn trains on all the same")


def _room(endpoint: Endpoint) -> int:
    """Returns the length of the longest prompt that may be sent to the endpoint."""
    if endpoint.described.owned_by == "holdfast":
        return EMBEDDED_TOKENS
    return (endpoint.described.max_model_len or sys.maxsize) - 1


def _lengths(longest: int) -> list[int]:
    """Returns a few lengths up to `longest`. A wrong attention window or position encoding shows at
    every length above its own."""
    lengths = (longest // 8, longest // 4, longest // 2, longest)
    return [length for length in lengths if length > PROBED_BY_WEIGHTS]


class Question(Struct, frozen=True):
    """A prompt, with the trainer's logprob of the likeliest next token."""

    ids: list[int]
    logprob: float

    def answered(self, token: int, logprob: float) -> TrainedSequence:
        """Returns the prompt followed by the engine's token, as a sequence for the judge."""
        tokens = TokenSequence([*self.ids, token], [len(self.ids)])
        return TrainedSequence(tokens, [logprob], [1.0], [0.0], 0.0)


def _answered(sequences: Sequence[list[int]], trainer: Trainer) -> list[Question]:
    questions = []
    for ids in sequences:
        lengths = sorted({max(len(ids) // 2, 1), len(ids) - 1})
        logprobs = trainer.best_logprobs(ids[: lengths[-1]], lengths)
        questions += [Question(ids[:n], own) for n, own in zip(lengths, logprobs, strict=True)]
    return questions


def _fresh(groups: Sequence[TrainingGroup], version: str) -> list[TrainedSequence]:
    return [s for s in sequences_of(groups, Objective(), version=version) if s.is_fresh]


def _longest(sequences: Sequence[TrainedSequence], device: str) -> list[TrainedSequence]:
    chosen: list[TrainedSequence] = []
    room = JUDGED_TOKENS[torch.device(device).type]
    for sequence in sorted(sequences, key=lambda s: -len(s.tokens.ids)):
        room -= len(sequence.tokens.ids)
        if chosen and room < 0:
            break
        chosen.append(sequence)
    return chosen


def judge(
    folder: Path, sequences: Sequence[TrainedSequence], settings: TrainingSettings, dtype: str
) -> GapVerdict:
    """Measures how far the engine and the trainer are from float32, on tokens recorded with the
    weights in `folder`. `dtype` is the coarser data type of the two sides."""
    device = settings.device
    try:
        return _judge(folder, sequences, settings, dtype, device)
    except torch.OutOfMemoryError:
        return _judge(folder, sequences, settings, dtype, "cpu")


def _judge(
    folder: Path,
    sequences: Sequence[TrainedSequence],
    settings: TrainingSettings,
    dtype: str,
    device: str,
) -> GapVerdict:
    exact = _plain(folder, sequences, "float32", device)
    rounded = exact if dtype == "float32" else _plain(folder, sequences, dtype, device)
    noise = NOISIER * gap_between(rounded, exact).mean
    recorded = list(chain.from_iterable(s.engine_logprobs for s in sequences))
    refused = ""
    try:
        trainer = _trained(folder, sequences, settings, device)
    except UsageError as error:
        trainer, refused = [math.nan] * len(exact), str(error)
    return GapVerdict(
        len(exact),
        gap_between(recorded, exact),
        gap_between(trainer, exact),
        max(explained(dtype) / 2, noise),
        refused,
    )


@torch.no_grad()
def _plain(
    folder: Path, sequences: Sequence[TrainedSequence], dtype: str, device: str
) -> list[float]:
    module = load_model(folder, getattr(torch, dtype)).to(device)
    values: list[float] = []
    for sequence in sequences:
        warmth = torch.tensor(list(sequence.temperatures), device=device)
        values += plain_logprobs(module, alone(sequence.tokens), warmth)[0].tolist()
    return values


@torch.no_grad()
def _trained(
    folder: Path, sequences: Sequence[TrainedSequence], settings: TrainingSettings, device: str
) -> list[float]:
    """Returns the logprobs of the sequences as the trainer computes them."""
    network = Network(
        folder,
        device=device,
        dtype=getattr(torch, settings.dtype),
        longest=settings.trainer.row_tokens,
        trained=False,
    )
    values: dict[tuple[int, int], float] = {}
    tokens = [sequence.tokens for sequence in sequences]
    together = pack(tokens, budget=settings.trainer.row_tokens)
    single = [(number, alone(each)) for number, each in enumerate(tokens)]
    for first, row in single if network.why_sequential else [(0, row) for row in together]:
        numbers = [first + number for number in row.sequences]
        places = list(zip(numbers, row.indices, strict=True))
        warmth = torch.tensor([sequences[n].temperatures[i] for n, i in places], device=device)
        logprobs = network.logprobs(row, warmth)[0].tolist()
        values.update(zip(places, logprobs, strict=True))
    return [values[place] for place in sorted(values)]
