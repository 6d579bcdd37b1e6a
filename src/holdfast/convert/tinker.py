"""Converts samples to Tinker's `Datum` and back. Written for tinker 0.36.

A datum is one branch: the model's input without its last token, the targets shifted by one, and the
logprobs and advantages of the targets. There is no mask. Tokens that are not trained have an
advantage (or a weight) of 0. Provenance spans say which turn of the trajectory each token comes
from.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.convert.checks import listed, narrowed, samples_for
from holdfast.convert.provenance import KEY, Fields, provenance_of, restored
from holdfast.convert.selection import Group, groups_of, real_members, response_start
from holdfast.extras import needed_by
from holdfast.records.errors import UsageError
from holdfast.records.samples.sample import Sample
from holdfast.training.advantages import ESTIMATORS, Estimator, estimate

CENTRED = ESTIMATORS["dr_grpo"]
"""Advantages are rewards minus the mean of their group, as in Tinker's own recipes."""


class TinkerSpan(Struct, frozen=True):
    """A range of tokens that one turn sampled, or that was in the turn's prompt."""

    is_sampled: bool
    sequence_id: str
    offset: int
    length: int


class TinkerDatum(Struct, frozen=True):
    """One branch, as plain values. `datum` makes a `tinker.Datum` of them."""

    model_input: list[int]
    target_tokens: list[int]
    logprobs: list[float]
    advantages: list[float]
    mask: list[int]
    """1 for each target that is trained. Used to read the datum back, and as `weights`."""
    spans: list[TinkerSpan]
    """The spans of the whole branch. `datum` cuts them to the input and to the targets."""
    reward: float | None
    provenance: Fields

    def datum(self, *, weights: bool = False) -> Any:
        """Returns a `tinker.Datum` for the losses `importance_sampling`, `ppo` and `cispo`. With
        `weights`, it is for `cross_entropy`."""
        with needed_by("datum"):
            import tinker

        inputs = {"target_tokens": self.target_tokens}
        if weights:
            inputs["weights"] = self.mask
        else:
            inputs |= {"logprobs": self.logprobs, "advantages": self.advantages}  # type: ignore[dict-item]
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints(self.model_input), loss_fn_inputs=inputs
        )
        total = len(self.model_input)
        return datum.with_provenance(
            model_input=[_real(span) for span in _cut(self.spans, 0, total)],
            loss_fn_inputs=[_real(span) for span in _cut(self.spans, 1, total + 1)],
        )


def to_tinker(
    samples: Iterable[Sample],
    *,
    estimator: Estimator = CENTRED,
    advantages: Mapping[str, float] | None = None,
) -> list[TinkerDatum]:
    """Returns a datum for each branch of each trajectory that has an advantage. A trajectory
    without a reward is left out, and is in no baseline. `advantages`, by trajectory
    (`task/sample`), replace those of `estimator`."""
    tinker_datums = []
    for group in groups_of(samples_for("to_tinker", samples)):
        for sample, advantage in _with_advantages(group, estimator, advantages):
            tinker_datums.append(_datum(sample, advantage))
    return tinker_datums


def _with_advantages(
    group: Group, estimator: Estimator, advantages: Mapping[str, float] | None
) -> Iterable[tuple[Sample, float]]:
    members = real_members(group)
    (estimated,) = estimate([[member.reward for member in members]], estimator)
    for member, value in zip(members, estimated, strict=True):
        advantage = value
        if advantages is not None:
            name = member.first.trajectory
            if name not in advantages:
                raise UsageError(f"advantages have none for the trajectory {name!r}")
            advantage = advantages[name]
        if advantage is not None:
            yield from ((sample, advantage) for sample in member.samples)


def _datum(sample: Sample, advantage: float) -> TinkerDatum:
    response_start(sample)  # Raises if there is no prompt.
    narrowed(advantage, sample, trainer="Tinker", what="advantage")
    mask = sample.loss_mask[1:]
    return TinkerDatum(
        model_input=sample.token_ids[:-1],
        target_tokens=sample.token_ids[1:],
        logprobs=sample.logprobs[1:],
        advantages=[advantage if trained else 0.0 for trained in mask],
        mask=mask,
        spans=_spans(sample),
        reward=sample.reward,
        provenance=provenance_of(sample),
    )


def _spans(sample: Sample) -> list[TinkerSpan]:
    """Returns the spans of all tokens. Each turn has a span of the prompt tokens that no earlier
    turn has, if there are any, and then a span of its sampled tokens. Tokens after the last turn
    get a span of their own."""
    spans: list[TinkerSpan] = []
    place = 0
    for number, turn in enumerate(sample.turns):
        name = f"{sample.trajectory}#{sample.branch}/{number}"
        if turn.start > place:
            spans.append(TinkerSpan(False, name, place, turn.start - place))
        spans.append(TinkerSpan(True, name, 0, turn.end - turn.start))
        place = turn.end
    if place < len(sample.token_ids):
        name = f"{sample.trajectory}#{sample.branch}/{len(sample.turns)}"
        spans.append(TinkerSpan(False, name, place, len(sample.token_ids) - place))
    return spans


def _cut(spans: Sequence[TinkerSpan], start: int, end: int) -> list[TinkerSpan]:
    """Returns the parts of the spans from token `start` to token `end` (exclusive)."""
    parts = []
    place = 0
    for span in spans:
        first, last = max(place, start), min(place + span.length, end)
        if last > first:
            offset = span.offset + first - place
            parts.append(TinkerSpan(span.is_sampled, span.sequence_id, offset, last - first))
        place += span.length
    return parts


def _real(span: TinkerSpan) -> Any:
    import tinker

    kind = tinker.SampledProvenanceSpan if span.is_sampled else tinker.PromptProvenanceSpan
    return kind(sequence_id=span.sequence_id, offset=span.offset, length=span.length)


def from_tinker(data: Iterable[TinkerDatum]) -> list[Sample]:
    """Returns the samples that `to_tinker` converted."""
    wants = "from_tinker wants the TinkerDatums of to_tinker"
    return [
        restored(
            datum.provenance,
            token_ids=[*datum.model_input, datum.target_tokens[-1]],
            loss_mask=[0, *datum.mask],
            logprobs=[0.0, *datum.logprobs],
            reward=datum.reward,
        )
        for datum in listed(data, wants, lambda item: isinstance(item, TinkerDatum))
    ]


def line(datum: TinkerDatum) -> Fields:
    """Returns the datum as a line of a file."""
    return {
        "model_input": datum.model_input,
        "loss_fn_inputs": {
            "target_tokens": datum.target_tokens,
            "logprobs": datum.logprobs,
            "advantages": datum.advantages,
        },
        "mask": datum.mask,
        "reward": datum.reward,
        KEY: datum.provenance,
    }
