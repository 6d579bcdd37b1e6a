"""Builds the token fields of a row, which a trainer reads from `execution_metadata.extra`.

There are two layouts. *Group*: the samples of one prompt side by side; `completion_ids[i]` is all
of sample i. *Flat*: one branch of one trajectory; `completion_ids[0]` is everything after the first
prompt, with masks and turn boundaries. Token ids come only from the records. If the engine gave no
ids, the row has no token fields.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.records.conversation import main_turns
from holdfast.records.encoding.tokens import count, unpack_ids, unpack_logprobs
from holdfast.records.history import History
from holdfast.records.message import Message
from holdfast.records.samples.logprobs import mode_with
from holdfast.records.samples.sample import Sample, samples_of, with_tokens
from holdfast.records.step import Generated, VersionSpan
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView

Fields = dict[str, object]

NAMES = frozenset(
    {
        *("prompt_ids", "completion_ids", "inference_logprobs", "completions_text", "truncated"),
        *("finish_reasons", "rewards", "samples", "version_spans", "failed_samples"),
        *("branch", "loss_mask", "turn_boundaries", "token_turn_traces", "logprobs_mode"),
    }
)
"""All names in `extra` that Holdfast fills, even if a row lacks some of them."""


class RowTurn(Struct, frozen=True):
    """A generation with its position in the token stream of a branch."""

    step: Generated
    start: int
    end: int


class Branch(Struct, frozen=True):
    """A training sample with the turns that it consists of."""

    sample: Sample
    turns: list[RowTurn]

    @property
    def first_prompt(self) -> int:
        return self.turns[0].start


def branches_of(view: TrajectoryView) -> list[Branch]:
    """Returns the branches of a trajectory, in the order and with the indices of the exported
    samples.
    """
    key = view.key
    samples = samples_of(view.history, task=key.task, group=key.task, sample=key.sample)
    lanes = _lanes(view.history)
    branches = [Branch(sample, lanes[sample.branch]) for sample in samples]
    for branch in branches:
        whole = len(branch.sample.token_ids)
        assert branch.turns[-1].end == whole, "turns and tokens of a branch agree"
    return branches


def _lanes(history: History) -> list[list[RowTurn]]:
    """Returns a list of turns for each path from the root to a leaf of the conversation tree. A
    path that branches off from another path begins with the turns before the branching point."""
    ends: dict[str, tuple[list[RowTurn], int]] = {}
    lanes: list[list[RowTurn]] = []
    for step in with_tokens(history):
        lane, keep = _lane(step, ends.get(step.base))
        if not any(lane is known for known in lanes):
            lanes.append(lane)
        start = keep + count(step.delta)
        lane.append(RowTurn(step, start, start + count(step.ids)))
        ends[step.path] = lane, lane[-1].end
    return lanes


def _lane(step: Generated, base: tuple[list[RowTurn], int] | None) -> tuple[list[RowTurn], int]:
    """Returns the list of turns that a step extends, and the number of tokens that the step keeps.

    `base` is the list of the step's base, with the number of its tokens. The returned list is this
    list, a shortened copy of it, or a new list.
    """
    if base is None:
        return [], 0
    lane, length = base
    if step.keep < length or length < lane[-1].end:
        return [turn for turn in lane if turn.end <= step.keep], step.keep
    return lane, step.keep


def group_fields(views: Sequence[TrajectoryView]) -> Fields:
    """Returns the token fields for samples of one prompt, each a single generation."""
    steps = [view.history.generations[0] for view in views]
    fields: Fields = {}
    if all(step.ids for step in steps):
        fields = {
            "prompt_ids": unpack_ids(steps[0].delta).tolist(),
            "completion_ids": [unpack_ids(step.ids).tolist() for step in steps],
            "inference_logprobs": [unpack_logprobs(step.logprobs).tolist() for step in steps],
            "version_spans": [msgspec.to_builtins(step.versions) for step in steps],
            "logprobs_mode": [mode_with(step.logprobs_mode, step.sampling).value for step in steps],
        }
    return fields | {
        "completions_text": [completion_text(step.message) for step in steps],
        "truncated": [view.status is Status.TRUNCATED for view in views],
        "finish_reasons": [step.finish_reason for step in steps],
        "rewards": [view.reward for view in views],
        "samples": [view.key.sample for view in views],
    }


def flat_fields(view: TrajectoryView, branch: Branch | None, *, turn_traces: bool) -> Fields:
    """Returns the token fields of one trajectory, or of one of its branches. Without a branch,
    there are no tokens.
    """
    steps = [turn.step for turn in branch.turns] if branch else main_turns(view.history)
    fields = {} if branch is None else _tokens(branch)
    if branch is not None and turn_traces:
        fields["token_turn_traces"] = _traces(branch)
    return fields | {
        "completions_text": ["\n".join(completion_text(step.message) for step in steps)],
        "truncated": [view.status is Status.TRUNCATED],
        "finish_reasons": [steps[-1].finish_reason if steps else ""],
        "rewards": [view.reward],
        "samples": [view.key.sample],
        "branch": branch.sample.branch if branch else 0,
        **({"step_rewards": view.step_rewards} if view.step_rewards else {}),
    }


def _tokens(branch: Branch) -> Fields:
    sample, first = branch.sample, branch.first_prompt
    return {
        "prompt_ids": sample.token_ids[:first],
        "completion_ids": [sample.token_ids[first:]],
        "inference_logprobs": [sample.logprobs[first:]],
        "loss_mask": [sample.loss_mask[first:]],
        "turn_boundaries": [[turn.start - first, turn.end - first] for turn in branch.turns],
        "version_spans": [_after(first, sample.version_spans)],
        "logprobs_mode": [sample.logprobs_mode.value],
    }


def _after(first: int, spans: Sequence[VersionSpan]) -> list[object]:
    return [
        [span.version, span.start - first, span.end - first, int(span.source)]
        for span in spans
        if span.start >= first
    ]


def _traces(branch: Branch) -> list[Fields]:
    """Returns every turn with its whole prompt. The size grows with the square of the number of
    turns.
    """
    ids, logprobs = branch.sample.token_ids, branch.sample.logprobs
    return [
        {
            "step_index": index,
            "prompt_ids": ids[: turn.start],
            "completion_ids": ids[turn.start : turn.end],
            "completion_logprobs": logprobs[turn.start : turn.end],
        }
        for index, turn in enumerate(branch.turns)
    ]


def completion_text(message: Message) -> str:
    """Returns the reply's text from the parsed message, followed by its tool calls.

    The text is for people and scorers. It has no reasoning and no special tokens; the exact text is
    in the ids.
    """
    calls = [
        f'<tool_call>{{"name": {msgspec.json.encode(call.name).decode()}, '
        f'"arguments": {call.arguments}}}</tool_call>'
        for call in message.tool_calls
    ]
    return "".join([message.text, *calls])
