"""Computes again how a step weighs its tokens: the advantage and the weight of each token.

The journal has the rewards and the tokens, and the run has the settings of its training. The
trainer's own logprobs, a penalty in the reward and the state of the optimizer are not recorded for
each token, and so are not part of the result.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import HoldfastError
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.sample import Sample
from holdfast.records.step import Generated
from holdfast.training.batch import TrainedSequence, TrainingGroup, load_group, sequences_of
from holdfast.training.objective.objective import KlPlace
from holdfast.training.settings import TrainerSettings, training_of

MAX_GROUPS = 64
"""The largest number of groups that are loaded for a step."""


class Weighing(NamedTuple):
    """A step's groups, and the sequences that it trained."""

    groups: list[TrainingGroup]
    sequences: list[TrainedSequence]
    missing: str
    """What the numbers leave out because it is not recorded, as text. "" if nothing is left out."""

    def sequence(self, sample: Sample) -> TrainedSequence | None:
        """Returns the trained sequence of a sample, or None if no loss uses the sample."""
        ids = sample.token_ids
        return next((each for each in self.sequences if each.tokens.ids is ids), None)

    def samples(self) -> Iterator[tuple[str, Sample]]:
        for group in self.groups:
            for trajectory in group.trajectories:
                for sample in trajectory.samples:
                    yield trajectory.key, sample


def settings_of(run: Run) -> TrainerSettings | None:
    """Returns the trainer's settings of the run. Returns None if the run has none, or if they
    cannot be read."""
    try:
        record = training_of(run)
        return (
            None
            if record is None
            else msgspec.convert(record.settings.get("trainer"), TrainerSettings)
        )
    except (msgspec.MsgspecError, HoldfastError):
        return None


async def weigh(journal: Journal, run: Run, ordinals: Sequence[int]) -> Weighing | None:
    """Computes the weights of the tokens of one step, whose groups are given by their ordinals.
    Returns None if the training's settings are not known, or if the step has too many groups."""
    settings = settings_of(run)
    if settings is None or len(ordinals) > MAX_GROUPS:
        return None
    groups = []
    for ordinal in ordinals:
        members = await journal.trajectories(run, ordinals=[ordinal])
        groups.append(await load_group(journal, members, trained=False))
    sequences = sequences_of(
        groups,
        settings.objective,
        truncation=settings.truncation,
        overlong=settings.overlong,
        discount=settings.discount,
    )
    return Weighing(groups, sequences, _missing(run, settings))


def _missing(run: Run, settings: TrainerSettings) -> str:
    record = training_of(run)
    if record is not None and record.settings.get("loss"):
        return "the training has a loss of its own: its weights are not known here"
    kl = settings.objective.kl
    if kl.coefficient and kl.place is KlPlace.REWARD:
        return "the KL penalty in the rewards is not recorded, so advantages are without it"
    return ""


class Moved(NamedTuple):
    """A token and how much it moved the model."""

    trajectory: str
    path: str
    at: int
    id: int
    logprob: float
    advantage: float
    push: float
    """weight × advantage × (1 - p): how far the loss moves the token's own logit, before clipping
    and the optimizer."""


def pushes(sequence: TrainedSequence) -> Iterator[tuple[int, float, float, float]]:
    """Yields the index, logprob, advantage and push of each trained token of a sequence."""
    for place, logprob, advantage in zip(
        sequence.tokens.trained, sequence.engine_logprobs, sequence.advantages, strict=True
    ):
        probability = math.exp(min(logprob, 0.0))
        yield place, logprob, advantage, sequence.weight * advantage * (1.0 - probability)


def place_of(step: Generated, at: int) -> int:
    """Converts the index `at` of a token in a reply to the token's index in the stream of its
    branch."""
    return step.keep + len(unpack_ids(step.delta)) + at


def reply_at(history: History, sample: Sample, place: int) -> tuple[str, int] | None:
    """Returns the path of the reply that sampled a token, and the token's index in the reply.
    `place` is the token's index in the sample. Returns None for a token that no trainable reply
    sampled."""
    for step in history.generations:
        start = place_of(step, 0)
        ids = unpack_ids(step.ids)
        is_inside = step.trainable and start <= place < start + len(ids)
        if is_inside and list(ids) == list(sample.token_ids[start : start + len(ids)]):
            return step.path, place - start
    return None
