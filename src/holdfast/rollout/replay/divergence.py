"""Describes in words how a rollout's request differs from the record.

The text shows both sides, stays short, and is made quickly even for long requests.
"""

import difflib
from collections.abc import Callable, Sequence

import msgspec

from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.tokens import common_prefix, unpack_ids
from holdfast.records.failure import shortened
from holdfast.records.message import Message, ToolCall
from holdfast.records.sampling import Sampling
from holdfast.records.step import EnvironmentStepped, Generated, Step, ToolIntent, ValueRecorded
from holdfast.rollout.replay.prompt import Prompt

MAX_DIFF_CHARACTERS = 600
MAX_COMPARED_CHARACTERS = 20_000
"""The most characters of texts that are compared line by line."""
CHARACTERS_BEFORE, CHARACTERS_AFTER = 60, 180
"""The characters that are shown before and after the first difference between long texts."""


def of_generate(
    recorded: Step,
    prompt: Prompt,
    *,
    sampling: Sampling,
    renderer: Renderer,
    added_then: Callable[[Generated], Sequence[Message]],
) -> str:
    """Describes how a generation differs from the recorded step: in its kind, its sampling or its
    prompt. For a renderer without tokens, compares the added messages instead of the prompts."""
    if not isinstance(recorded, Generated):
        return f"recorded {name_of(recorded)}, now a generation"
    if recorded.sampling != sampling:
        return f"sampling: {_fields(recorded.sampling, sampling)}"
    if isinstance(renderer, MessagesOnly):
        return "the messages: " + _diff(_lines(added_then(recorded)), _lines(prompt.added))
    then, now = _text(unpack_ids(recorded.delta), renderer), _text(prompt.delta, renderer)
    if (recorded.base, recorded.keep) != (prompt.base, prompt.keep) and then == now:
        return (
            f"the prompt: recorded {recorded.keep} tokens kept of step {recorded.base or 'none'}, "
            f"now {prompt.keep} of {prompt.base or 'none'}"
        )
    return "the prompt: " + _diff(then, now)


def of_tool(recorded: Step, call: ToolCall) -> str:
    now = f"{call.name}({call.arguments})"
    if not isinstance(recorded, ToolIntent):
        return f"recorded {name_of(recorded)}, now tool {shortened(now)}"
    then = f"{recorded.name}({recorded.arguments})"
    if then == now:
        ids = (shortened(repr(call_id)) for call_id in (recorded.call_id, call.id))
        return "the tool call's id: recorded {}, now {}".format(*ids)
    return f"the tool call: {_diff(then, now)}"


def of_value(recorded: Step, name: str) -> str:
    return f"recorded {name_of(recorded)}, now value {shortened(repr(name))}"


def of_environment(recorded: Step, now: str) -> str:
    now = shortened(now)
    if not isinstance(recorded, EnvironmentStepped):
        return f"recorded {name_of(recorded)}, now {now}"
    return f"recorded {name_of(recorded)} of the environment at {recorded.environment}, now {now}"


def of_observations(recorded: str, now: str) -> str:
    return _diff(recorded, now)


def name_of(step: Step) -> str:
    match step:
        case Generated():
            return "a generation"
        case ToolIntent():
            return f"tool {shortened(f'{step.name}({step.arguments})')}"
        case ValueRecorded():
            return f"value {shortened(repr(step.name))}"
        case EnvironmentStepped():
            return f"environment action {shortened(repr(step.action))}"


def _text(ids: Sequence[int], renderer: Renderer) -> str:
    return renderer.decode(ids)


def _lines(messages: Sequence[Message]) -> str:
    return "\n".join(msgspec.json.encode(message).decode() for message in messages)


def _fields(then: Sampling, now: Sampling) -> str:
    pairs = zip(then.__struct_fields__, *map(msgspec.structs.astuple, (then, now)), strict=True)
    differences = [
        f"{field}: recorded {shortened(repr(old))}, now {shortened(repr(new))}"
        for field, old, new in pairs
        if old != new
    ]
    return "; ".join(differences)


def _diff(then: str, now: str) -> str:
    if then == now:
        return "the texts are equal, the tools or tokens are not"
    if len(then) + len(now) <= MAX_COMPARED_CHARACTERS:
        lines = difflib.unified_diff(
            then.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=1
        )
        difference = "\n".join(lines)
        # Empty if only the line ends differ.
        if 0 < len(difference) <= MAX_DIFF_CHARACTERS:
            return difference
    at = common_prefix(then, now)
    return (
        f"they part at character {at:,}\nrecorded: {_excerpt(then, at)}\nnow: {_excerpt(now, at)}"
    )


def _excerpt(text: str, at: int) -> str:
    begin, end = max(0, at - CHARACTERS_BEFORE), at + CHARACTERS_AFTER
    before, after = "…" if begin else "", "…" if end < len(text) else ""
    return f"{before}{text[begin:end]!r}{after}"
