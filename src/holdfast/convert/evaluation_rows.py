"""Converts EvaluationRows, of Holdfast or of eval-protocol, to samples. There are three layouts:

- *Group*: `prompt_ids` once, and lists of `completion_ids` and `inference_logprobs` for each
  completion.
- *Flat*: one conversation; `completion_ids` are everything after the first prompt, with a
  `loss_mask` and the boundaries of turns.
- *Traces*: `token_turn_traces`, every turn with its whole prompt.

Ids come only from the row, because text is never tokenized again. A row that finished without ids
raises `NotTrainable` with its `row_id`. A row that failed is left out, because there is nothing to
train on.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.convert.checks import rows_for
from holdfast.records.errors import NotTrainable
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.samples.sample import Sample, TurnSpan
from holdfast.records.step import VersionSource, VersionSpan
from holdfast.records.trajectory import Status

Row = Mapping[str, Any]
_FINISHED = (None, 0, 100)
"""Codes of `rollout_status`: none, OK, FINISHED."""


def from_rows(rows: Iterable[Row | Any]) -> list[Sample]:
    """Returns the samples of rows, which are dicts or eval-protocol's own objects, in the order of
    the rows."""
    numbers: Counter[str] = Counter()
    samples: list[Sample] = []
    for position, item in enumerate(rows_for("from_rows", rows)):
        row = item if isinstance(item, Mapping) else item.model_dump(mode="json")
        samples += _Reader(row, position, numbers).samples()
    return samples


class _Reader:
    """Reads the samples of one row."""

    def __init__(self, row: Row, position: int, numbers: "Counter[str]"):
        self._row = row
        self._numbers = numbers
        metadata = _mapping(row, "input_metadata")
        self._name = str(metadata.get("row_id") or f"row-{position}")
        self._params = _mapping(metadata, "completion_params")
        self._extra = _mapping(_mapping(row, "execution_metadata"), "extra")

    def samples(self) -> list[Sample]:
        extra = self._extra
        if traces := extra.get("token_turn_traces"):
            return self._checked(self._from_traces, traces)
        completions = extra.get("completion_ids")
        if not completions or extra.get("prompt_ids") is None:
            if not self._has_finished():
                return []
            raise NotTrainable(
                f"row {self._name!r} has no token ids (execution_metadata.extra: prompt_ids, "
                "completion_ids, inference_logprobs): text is never tokenized again; sample it "
                "with an engine that gives ids"
            )
        if isinstance(completions[0], int):
            return self._checked(self._from_flat, completions)
        return self._checked(self._from_completions, completions)

    def _checked(self, read: Any, *arguments: Any) -> list[Sample]:
        try:
            samples: list[Sample] = read(*arguments)
        except (ValueError, TypeError, KeyError, IndexError, msgspec.ValidationError) as error:
            raise NotTrainable(
                f"row {self._name!r}: its token fields do not fit together: {error}"
            ) from error
        return samples

    def _has_finished(self) -> bool:
        if self._extra.get("failed_samples"):
            return False
        return _mapping(self._row, "rollout_status").get("code") in _FINISHED

    # --- the layouts

    def _from_completions(self, completions: Sequence[Sequence[int]]) -> list[Sample]:
        """Reads one or several completions of one prompt."""
        extra = self._extra
        logprobs = self._logprobs(len(completions))
        boundaries = extra.get("turn_boundaries")
        masks = extra.get("loss_mask") or [[1] * len(ids) for ids in completions]
        samples = []
        for number, ids in enumerate(completions):
            turns = boundaries if boundaries is not None else [[0, len(ids)]]
            samples.append(
                self._sample(
                    number,
                    prompt=extra["prompt_ids"],
                    ids=ids,
                    logprobs=logprobs[number],
                    mask=masks[number],
                    turns=turns,
                )
            )
        return samples

    def _from_flat(self, ids: Sequence[int]) -> list[Sample]:
        """Reads one conversation from flat lists. Without a mask, every token counts as sampled, so
        a conversation with several replies raises `NotTrainable`."""
        replies = sum(m.get("role") == "assistant" for m in self._row.get("messages") or ())
        mask = self._extra.get("loss_mask")
        if mask is None and replies > 1:
            raise NotTrainable(
                f"row {self._name!r} has {replies} turns in flat lists without a loss_mask: which "
                "tokens were sampled is lost; export it with token_turn_traces"
            )
        logprobs = self._extra.get("inference_logprobs") or self._extra.get("completion_logprobs")
        if logprobs is None:
            raise self._without_logprobs()
        if mask is not None and mask and isinstance(mask[0], list):
            mask = mask[0]
        boundaries = self._extra.get("turn_boundaries") or _runs(mask or [1] * len(ids))
        return [
            self._sample(
                0,
                prompt=self._extra["prompt_ids"],
                ids=ids,
                logprobs=logprobs[0] if isinstance(logprobs[0], list) else logprobs,
                mask=mask or [1] * len(ids),
                turns=boundaries,
            )
        ]

    def _from_traces(self, traces: Sequence[Row]) -> list[Sample]:
        """Reads the samples of a list of turns. A turn that continues the turn before it belongs to
        the same sample. Any other turn begins a new branch."""
        lanes: list[list[Row]] = []
        for trace in traces:
            before = _stream(lanes[-1][-1]) if lanes else None
            if before is None or list(trace["prompt_ids"])[: len(before)] != before:
                lanes.append([])
            lanes[-1].append(trace)
        number = self._number(0)
        return [
            self._lane(lane, number=number, branch=branch + int(self._extra.get("branch", 0)))
            for branch, lane in enumerate(lanes)
        ]

    def _lane(self, lane: Sequence[Row], *, number: int, branch: int) -> Sample:
        prompt = list(lane[0]["prompt_ids"])
        ids: list[int] = []
        logprobs: list[float] = []
        mask: list[int] = []
        turns: list[list[int]] = []
        for trace in lane:
            between = list(trace["prompt_ids"])[len(prompt) + len(ids) :]
            sampled = list(trace["completion_ids"])
            trace_logprobs = trace.get("completion_logprobs")
            if trace_logprobs is None:
                raise self._without_logprobs()
            ids += between + sampled
            logprobs += [0.0] * len(between) + list(trace_logprobs)
            mask += [0] * len(between) + [1] * len(sampled)
            turns.append([len(ids) - len(sampled), len(ids)])
        # Rows of Holdfast also say which of these tokens another branch trains.
        own = self._extra.get("loss_mask")
        if own and len(own[0]) == len(mask):
            mask = list(own[0])
        return self._sample(
            0,
            prompt=prompt,
            ids=ids,
            logprobs=logprobs,
            mask=mask,
            turns=turns,
            number=number,
            branch=branch,
        )

    # --- its parts

    def _sample(
        self,
        at: int,
        *,
        prompt: Sequence[int],
        ids: Sequence[int],
        logprobs: Sequence[float],
        mask: Sequence[int],
        turns: Sequence[Sequence[int]],
        number: int | None = None,
        branch: int | None = None,
    ) -> Sample:
        first = len(prompt)
        truncated = self._truncated(at)
        member = self._number(at) if number is None else number
        status = Status.TRUNCATED if truncated else Status.COMPLETED
        how = (float(self._params.get("temperature", 1.0)), float(self._params.get("top_p", 1.0)))
        return Sample(
            task=self._name,
            group=self._name,
            sample=member,
            branch=int(self._extra.get("branch", 0)) if branch is None else branch,
            status=status.name,
            reason="",
            token_ids=[*prompt, *ids],
            loss_mask=[0] * first + list(mask),
            logprobs=[0.0] * first + list(logprobs),
            version_spans=self._versions(at, first),
            reward=self._reward(at),
            logprobs_mode=self._mode(at),
            trajectory=f"{self._name}/{member}",
            turns=[
                TurnSpan(first + start, first + end, *how, bool(mask[start]), how[1] < 1)
                for start, end in turns
            ],
            truncated=truncated,
        )

    def _number(self, at: int) -> int:
        """Returns the sample's number in its group, as recorded, or else by the order of rows."""
        recorded = self._extra.get("samples")
        if recorded:
            return int(recorded[at])
        self._numbers[self._name] += 1
        return self._numbers[self._name] - 1

    def _logprobs(self, completions: int) -> Sequence[Sequence[float]]:
        logprobs = self._extra.get("inference_logprobs")
        if not logprobs or len(logprobs) != completions:
            raise self._without_logprobs()
        return list(logprobs)

    def _without_logprobs(self) -> NotTrainable:
        return NotTrainable(
            f"row {self._name!r} has token ids without logprobs (inference_logprobs): they are "
            "never filled in; sample it with logprobs"
        )

    def _reward(self, at: int) -> float | None:
        """Returns the completion's reward. A score of the whole row belongs to its first
        completion, since the others were not scored."""
        rewards = self._extra.get("rewards")
        if rewards is not None:
            value = rewards[at]
            return None if value is None else float(value)
        result = _mapping(self._row, "evaluation_result")
        if at or result.get("score") is None or not result.get("is_score_valid", True):
            return None
        return float(result["score"])

    def _truncated(self, at: int) -> bool:
        recorded = self._extra.get("truncated")
        if recorded is None:
            reasons = self._extra.get("finish_reasons")
            return reasons[at] == "length" if reasons else False
        return bool(recorded[at] if isinstance(recorded, list) else recorded)

    def _versions(self, at: int, first: int) -> list[VersionSpan]:
        recorded = self._extra.get("version_spans")
        spans = recorded[at] if recorded else ()
        return [
            VersionSpan(
                version,
                start + first,
                end + first,
                VersionSource(source[0]) if source else VersionSource.UNKNOWN,
            )
            for version, start, end, *source in spans
        ]

    def _mode(self, at: int) -> LogprobsMode:
        recorded = self._extra.get("logprobs_mode")
        return LogprobsMode(recorded[at]) if recorded else LogprobsMode.UNKNOWN


def _mapping(holder: Row, name: str) -> Row:
    row = holder.get(name)
    return row if isinstance(row, Mapping) else {}


def _stream(trace: Row) -> list[int]:
    return [*trace["prompt_ids"], *trace["completion_ids"]]


def _runs(mask: Sequence[int]) -> list[list[int]]:
    """Returns the start and the end of each unbroken sequence of ones in the mask."""
    runs: list[list[int]] = []
    for place, trained in enumerate(mask):
        if trained and runs and runs[-1][1] == place:
            runs[-1][1] = place + 1
        elif trained:
            runs.append([place, place + 1])
    return runs
