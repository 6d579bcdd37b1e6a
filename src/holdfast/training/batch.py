"""Turns groups of trajectories into sequences with advantages and weights, ready to be packed.

A failure of the infrastructure never causes a gradient: a trajectory without a valid reward counts
in no baseline and in no loss. Each sampled token is trained once, and every trajectory weighs the
same, however many branches it has. Only `load_group` reads from the journal; all other functions
are pure. No torch is needed.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.engine.export.export import history_of
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.encoding.declared import as_declared
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.samples.sample import Sample, samples_of
from holdfast.records.step import VersionSource
from holdfast.training.advantages import (
    Estimator,
    OverlongPenalty,
    Returns,
    Rewards,
    estimate,
    estimate_by_turn,
    returns_to_go,
)
from holdfast.training.objective.objective import Mean, Objective
from holdfast.training.packing.rows import TokenSequence
from holdfast.training.settings import TruncationPolicy

_ROUNDING = 1e-9
"""A sum of rewards smaller than this counts as 0."""


class TrainedTrajectory(Struct, frozen=True):
    """One trajectory of a group. All its branches share one reward."""

    key: str
    reward: float | None
    samples: tuple[Sample, ...]
    metrics: Mapping[str, float] = {}
    """The scorer's numbers other than the reward."""

    @property
    def sampled_tokens(self) -> int:
        return sum(sum(sample.loss_mask) for sample in self.samples)

    @property
    def is_truncated(self) -> bool:
        return any(sample.truncated for sample in self.samples)

    @property
    def turns(self) -> int:
        """The number of trained turns."""
        return sum(len(_turn_starts(sample)) for sample in self.samples)

    def returns(self, reward: float, discount: float) -> list[float]:
        """Returns the return of each trained turn, in the order of branches, for a trajectory that
        earned `reward` in total. A reward that an environment gave counts at its turn. The part of
        `reward` that no environment gave counts at the last turn."""
        earned: list[float] = []
        for sample in self.samples:
            starts = _turn_starts(sample)
            before = len(earned)
            earned += [0.0] * len(starts)
            for step in sample.step_rewards if earned else ():
                turn = before - 1 + sum(start < step.place for start in starts)
                earned[max(turn, 0)] += step.reward
        if not earned:
            return [reward]
        rest = reward - math.fsum(earned)
        earned[-1] += 0.0 if abs(rest) < _ROUNDING else rest
        return returns_to_go(earned, discount)


class TrainingGroup(Struct, frozen=True):
    """The valid samples of one task."""

    task: str
    trajectories: tuple[TrainedTrajectory, ...]

    @property
    def rewards(self) -> list[float | None]:
        return [trajectory.reward for trajectory in self.trajectories]


class TrainedSequence(Struct, frozen=True):
    """A branch of a trajectory, with the advantage and weight of its trained tokens."""

    tokens: TokenSequence
    engine_logprobs: Sequence[float]
    """The engine's logprob of each trained token."""
    temperatures: Sequence[float]
    advantages: Sequence[float]
    weight: float
    is_fresh: bool = True
    """Whether the weights that are trained sampled every token whose version is known."""


async def load_group(
    journal: Journal, members: Sequence[TrajectoryRow], *, trained: bool = True
) -> TrainingGroup:
    """Loads a settled group for training: its valid members, with samples that passed
    `check_trainable`. For an evaluation (`trained=False`), that check is skipped."""
    task = members[0].key.task
    # Reads every member, because a wrong status would leave one out. All at once, because
    # sequential reads would spend most time in switches between threads.
    histories = await asyncio.gather(*(history_of(journal, member) for member in members))
    trajectories = []
    for member, history in zip(members, histories, strict=True):
        if not member.status.is_outcome:
            continue
        samples = samples_of(history, task=task, group=task, sample=member.key.sample)
        for sample in samples if trained else ():
            check_trainable(sample)
        metrics = {} if history.scored is None else history.scored.metrics
        trajectories.append(
            TrainedTrajectory(str(member.key), history.reward, tuple(samples), metrics)
        )
    return TrainingGroup(task, tuple(trajectories))


def group_samples(samples: Sequence[Sample]) -> list[TrainingGroup]:
    """Groups samples by task, in their order. Leaves out samples that are marked for removal."""
    members: dict[str, dict[int, list[Sample]]] = {}
    for sample in samples:
        group = members.setdefault(sample.group, {})
        if not sample.remove_sample:
            group.setdefault(sample.sample, []).append(sample)
    return [
        TrainingGroup(
            task,
            tuple(
                TrainedTrajectory(f"{task}/{number}", branches[0].reward, tuple(branches))
                for number, branches in group.items()
            ),
        )
        for task, group in members.items()
    ]


def sequences_of(
    groups: Sequence[TrainingGroup],
    objective: Objective,
    *,
    truncation: TruncationPolicy = TruncationPolicy.KEEP,
    overlong: OverlongPenalty | None = None,
    discount: float | None = None,
    penalties: Sequence[Sequence[float]] | None = None,
    max_tokens: int | None = None,
    version: str | None = None,
) -> list[TrainedSequence]:
    """Returns every branch that is trained, in order. `penalties`, for example a divergence from a
    reference model, has the shape of `groups` and is subtracted from the rewards. With a
    `discount`, each turn is credited with the discounted rewards from that turn on; with None, each
    turn is credited with the whole reward. `version` is the name of the weights that are trained.
    Raises `UsageError` for a branch that is longer than `max_tokens`."""
    is_masking = as_declared("truncation", truncation, TruncationPolicy) is TruncationPolicy.MASK
    rewards = [_shaped(group, overlong) for group in groups]
    if penalties is not None:
        rewards = [
            [None if r is None else r - p for r, p in zip(group, less, strict=True)]
            for group, less in zip(rewards, penalties, strict=True)
        ]
    advantages = _advantages(groups, rewards, objective.estimator, discount=discount)
    trained: list[tuple[TrainedTrajectory, list[float], int]] = []
    for number, (group, values) in enumerate(zip(groups, advantages, strict=True)):
        for trajectory, advantage in zip(group.trajectories, values, strict=True):
            masked = is_masking and trajectory.is_truncated
            if advantage is not None and not masked:
                trained.append((trajectory, advantage, number))
    return _weighted(trained, objective, max_tokens=max_tokens, version=version)


def _weighted(
    trained: Sequence[tuple[TrainedTrajectory, list[float], int]],
    objective: Objective,
    *,
    max_tokens: int | None,
    version: str | None,
) -> list[TrainedSequence]:
    lengths = [[sum(s.loss_mask) for s in t.samples] for t, _, _ in trained]
    weights = sequence_weights(lengths, objective.mean, objective.constant)
    sequences = []
    for (trajectory, advantages, family), shares in zip(trained, weights, strict=True):
        turns = iter(advantages)
        for sample, weight in zip(trajectory.samples, shares, strict=True):
            if max_tokens is not None and len(sample.token_ids) > max_tokens:
                raise UsageError(
                    f"trajectory {trajectory.key} has {len(sample.token_ids)} tokens, and a row at "
                    f"most {max_tokens}: raise row_tokens (--row-tokens), or limit the rollout"
                )
            if any(sample.loss_mask):
                advantages = _by_token(sample, turns)
                is_fresh = version is None or is_sampled_by(sample, version)
                sequences.append(_sequence(sample, advantages, weight, family, is_fresh=is_fresh))
    return sequences


def sequence_weights(
    lengths: Sequence[Sequence[int]], mean: Mean, constant: int | None = None
) -> list[list[float]]:
    """Returns the weight of each token of each sequence. The loss of a step is the sum of weight ×
    loss over its tokens, however the tokens are divided into micro-batches.

    `lengths` has, for each trajectory, the number of trained tokens of each of its sequences. A
    trajectory with several branches weighs as much as a trajectory with a single branch. A
    trajectory without trained tokens weighs nothing.
    """
    totals = [sum(branches) for branches in lengths]
    trajectories = sum(total > 0 for total in totals)
    tokens = sum(totals)

    def weight(total: int) -> float:
        if not total:
            return 0.0
        if mean is Mean.TOKENS:
            return 1 / tokens
        if mean is Mean.TRAJECTORIES:
            return 1 / (trajectories * total)
        assert constant is not None, "Objective checks it"
        return 1 / (trajectories * constant)

    return [
        [weight(total)] * len(branches) for branches, total in zip(lengths, totals, strict=True)
    ]


def _shaped(group: TrainingGroup, overlong: OverlongPenalty | None) -> list[float | None]:
    if overlong is None:
        return group.rewards
    return [
        None if t.reward is None else overlong.apply(t.reward, t.sampled_tokens)
        for t in group.trajectories
    ]


def _advantages(
    groups: Sequence[TrainingGroup],
    rewards: Sequence[Rewards],
    estimator: Estimator,
    *,
    discount: float | None,
) -> list[list[list[float] | None]]:
    """Returns the advantage of each trained turn of each trajectory."""
    advantages: list[list[list[float] | None]] = []
    if discount is None:
        for group, values in zip(groups, estimate(rewards, estimator), strict=True):
            both = zip(group.trajectories, values, strict=True)
            advantages.append([None if value is None else [value] * t.turns for t, value in both])
        return advantages
    returns: list[Returns] = []
    for group, listed in zip(groups, rewards, strict=True):
        pairs = zip(group.trajectories, listed, strict=True)
        returns.append([None if r is None else t.returns(r, discount) for t, r in pairs])
    return estimate_by_turn(returns, estimator)


def _turn_starts(sample: Sample) -> list[int]:
    """Returns the offset at which each trained turn of the sample begins. If the record of the
    sample has no turns, the sample counts as one turn."""
    if not any(sample.loss_mask):
        return []
    return [turn.start for turn in sample.turns if turn.trained] or [0]


def _by_token(sample: Sample, turns: Iterator[float]) -> list[float]:
    """Returns the advantage of each trained token of the sample. `turns` gives the advantages of
    its turns."""
    advantages = [0.0] * len(sample.token_ids)
    for start in _turn_starts(sample):
        advantages[start:] = [next(turns)] * (len(advantages) - start)
    return [advantages[place] for place, trains in enumerate(sample.loss_mask) if trains]


def is_sampled_by(sample: Sample, version: str) -> bool:
    """Returns whether the weights `version` sampled every token whose version is known."""
    spans = (span for span in sample.version_spans if span.source is not VersionSource.UNKNOWN)
    return all(span.version == version for span in spans)


def _sequence(
    sample: Sample, advantages: list[float], weight: float, family: int, *, is_fresh: bool
) -> TrainedSequence:
    trained = [place for place, trains in enumerate(sample.loss_mask) if trains]
    temperatures = [1.0] * len(sample.token_ids)
    for span in sample.turns:
        temperatures[span.start : span.end] = [span.temperature] * (span.end - span.start)
    return TrainedSequence(
        tokens=TokenSequence(sample.token_ids, trained, family),
        engine_logprobs=[sample.logprobs[place] for place in trained],
        temperatures=[temperatures[place] for place in trained],
        advantages=advantages,
        weight=weight,
        is_fresh=is_fresh,
    )


def check_trainable(sample: Sample) -> None:
    """Raises `NotTrainable` if the ratio between the trainer's and the recorded logprobs would be
    wrong. The ratio would be wrong if the recorded logprobs belong to another distribution than the
    sampled one, or if the sampled distribution was cut (for example by top_p)."""
    if sample.logprobs_mode in (LogprobsMode.RAW, LogprobsMode.TEMPERED):
        raise NotTrainable(
            f"task {sample.task!r}, sample {sample.sample}: its logprobs are "
            f"{sample.logprobs_mode}, not those of the distribution that was sampled from; "
            "start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 and "
            "top_p 1"
        )
    for span in sample.turns:
        if span.trained and (span.is_cut or not span.temperature > 0):
            raise NotTrainable(
                f"task {sample.task!r}, sample {sample.sample}: sampled at temperature "
                f"{span.temperature:g} and top_p {span.top_p:g}, from a distribution that was cut "
                "or bent (top_p, top_k, min_p, penalties, logit_bias, extra_body, JSON, a forced "
                "tool call, a thinking budget); sample without, above temperature 0"
            )
