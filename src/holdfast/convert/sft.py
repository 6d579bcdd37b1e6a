"""Converts trajectories to messages, or to prompts with completions, for supervised fine-tuning.

Only valid outcomes are converted, because a model should not learn from a conversation that an
infrastructure failure ended. Both shapes are those of TRL's `SFTTrainer`, and of Hugging Face
datasets in general.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.convert.checks import views_for
from holdfast.convert.provenance import Fields
from holdfast.convert.selection import chosen
from holdfast.records.message import Message, Role
from holdfast.records.view import TrajectoryView


class SftLayout(StrEnum):
    """The fields in which a conversation is written."""

    MESSAGES = "messages"
    """One field with the whole conversation."""
    PROMPT_COMPLETION = "prompt_completion"
    """`prompt` has everything before the first reply, `completion` the rest."""


def to_sft(
    trajectories: Iterable[TrajectoryView],
    *,
    layout: str = SftLayout.MESSAGES,
    min_reward: float | None = None,
) -> list[Fields]:
    """Returns the rows of trajectories that completed or were truncated. With `min_reward`, only
    trajectories with at least that reward have a row."""
    written = chosen(SftLayout, "layout", layout)
    views = views_for("to_sft", trajectories)
    rows = (sft_row(view, layout=written, min_reward=min_reward) for view in views)
    return [row for row in rows if row is not None]


def sft_row(
    view: TrajectoryView, *, layout: SftLayout, min_reward: float | None = None
) -> Fields | None:
    """Returns the row of a trajectory, or None if the trajectory is left out: it is not valid, has
    too low a reward, or has no reply."""
    if not view.status.is_outcome:
        return None
    if min_reward is not None and (view.reward is None or view.reward < min_reward):
        return None
    messages = [_fields(message) for message in view.messages]
    first = next((n for n, m in enumerate(view.messages) if m.role is Role.ASSISTANT), None)
    if first is None:
        return None
    row: Fields = {"messages": messages}
    if layout is SftLayout.PROMPT_COMPLETION:
        row = {"prompt": messages[:first], "completion": messages[first:]}
    if view.tools:
        row["tools"] = view.tools
    return row | {"task": view.key.task, "sample": view.key.sample, "reward": view.reward}


def _fields(message: Message) -> Fields:
    fields: Fields = {"role": message.role.value, "content": _content(message)}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _content(message: Message) -> object:
    """Returns the content, with "" for None, because few chat templates accept None."""
    return "" if message.content is None else message.content


def _arguments(text: str) -> object:
    """Returns a call's arguments as a mapping, because templates write the JSON themselves. Text
    that is not a JSON object stays text."""
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return decoded if isinstance(decoded, dict) else text
