"""Checks the arguments of a rollout's steps, before anything is sampled or recorded.

A mistake raises a `UsageError` of one line, which names the argument and says what to do.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, ToolCall, as_message
from holdfast.records.sampling import Sampling, as_kept, schema_text, wrong_type
from holdfast.rollout.replay.reply import Reply
from holdfast.rollout.tools.tool import MAX_RESULT, Tool, name_in

Recordable = TypeVar("Recordable", Message, ToolCall)


def message_of(value: object) -> Message:
    """Converts a message, a dict in OpenAI's shape, or the text of a user to a message."""
    if isinstance(value, str | Message | Mapping) or _dumps(value):
        message = as_message(value, where="t.add: the message")
        _check_parts(message)
        return message
    raise UsageError(
        f"t.add takes messages, dicts and strings, not {_describe(value)}{_hint(value)}"
    )


_PARTS = (
    *("text", "image_url", "input_audio", "audio_url", "video_url", "file", "refusal"),
    *("image", "audio", "video"),  # The names in chat templates.
    *("input_text", "output_text", "input_image"),  # The names in OpenAI's Responses API.
)


def _check_parts(message: Message) -> None:
    """Raises `UsageError` if a part of the message has an unknown type. Such a part would be
    missing from the prompt, or an engine would reject it."""
    for at, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if (kind := part.get("type", "text")) not in _PARTS:
            raise UsageError(
                f"t.add: the message: content[{at}] is of the type {kind!r:.100}; the types of "
                f"parts are {', '.join(_PARTS)}"
            )


def _dumps(value: object) -> bool:
    """Returns whether the value is a message of another library, such as OpenAI's."""
    return hasattr(value, "role") and callable(getattr(value, "model_dump", None))


def _describe(value: object) -> str:
    """Describes a value for an error message. Only the length of a collection is shown, so that the
    same mistake has the same message in all tasks."""
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__} {value!r:.100}"


def _hint(value: object) -> str:
    if isinstance(value, list | tuple):
        return "; did you mean *messages?"
    if isinstance(value, Reply):
        return "; t.generate added the reply already"
    return "; did you forget to await it?" if inspect.isawaitable(value) else ""


def conversation_of(
    messages: "list[Message]", tools: Sequence[dict[str, object]], renderer: Renderer
) -> "list[Message]":
    """Returns a copy of the conversation to send to the model. Raises `UsageError` if the
    conversation is empty, or if the model's chat template cannot show the tools."""
    adopt_messages(messages)
    # Templates cannot begin with an empty conversation. A custom renderer, as for a base model,
    # may.
    if not messages and not getattr(renderer, "begins_empty", False):
        raise UsageError(
            "the conversation is empty: add a message first, as in t.add(*t.task.messages)"
        )
    if tools and not getattr(renderer, "shows_tools", True):
        raise UsageError(
            "the model's chat template does not show tools to it: describe them in a message and "
            "call generate without tools, or use a template that has them"
        )
    return list(messages)


def adopt_messages(messages: "list[Message]") -> None:
    """Replaces the dicts and other libraries' messages in the list with `Message`s."""
    for at, value in enumerate(list[object](messages)):
        if not isinstance(value, Message):
            if not isinstance(value, Mapping) and not _dumps(value):
                raise UsageError(f"t.messages holds messages, not {_describe(value)}{_hint(value)}")
            messages[at] = as_message(value, where=f"t.messages[{at}]")


def check_calls(
    calls: Sequence[ToolCall], tools: Sequence[Tool], schemas: Sequence[dict[str, object]]
) -> None:
    """Raises `UsageError` if the model calls a tool that it was offered, but that is not in
    `tools`. The error "there is no such tool" would punish the model for the rollout's mistake."""
    names = [tool.name for tool in tools]
    for call in calls:
        if not isinstance(call, ToolCall):
            meant = "; did you mean t.tools?" if isinstance(call, list | tuple) else ""
            raise UsageError(f"a call is one of reply.tool_calls, not {_describe(call)}{meant}")
        as_recorded(call)
        if call.name not in names and any(name_in(schema) == call.name for schema in schemas):
            raise UsageError(
                f"the model was shown the tool {call.name!r}, but t.tool was not given it: "
                f"t.tool(call, {call.name}), or t.tools(calls, *tools)"
            )


def check_rollouts(rollouts: Sequence[object], where: str) -> None:
    for rollout in rollouts:
        if inspect.iscoroutine(rollout):
            rollout.close()
            raise UsageError(f"{where} calls the function itself: {where}({rollout.__name__})")
        if not callable(rollout):
            meant = "; did you mean *rollouts?" if isinstance(rollout, list | tuple) else ""
            raise UsageError(
                f"{where} takes async functions of a Rollout, not {_describe(rollout)}{meant}"
            )


def label_of(function: object, name: object) -> str:
    """Returns the label under which `t.value` records a value: `name`, or else the function's
    name."""
    if not callable(function):
        raise UsageError(f"t.value takes a function that is called once, not {_describe(function)}")
    label = name or getattr(function, "__qualname__", type(function).__name__)
    return str(label).encode(errors="backslashreplace").decode()


def as_recorded(value: Recordable) -> Recordable:
    """Returns the value as it will be read from its record. Raises `UsageError` if it cannot be
    recorded."""
    try:
        packed = msgspec.msgpack.encode(value)
        _check_size(len(packed))
        return msgspec.msgpack.decode(packed, type=type(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = {Message: "message", ToolCall: "call"}[type(value)]
        raise UsageError(
            f"{value!r:.1000} is not a {kind} that can be recorded: {error}"
        ) from error


def _check_size(size: int) -> None:
    # A record that is too large for the journal would stop the whole run.
    if size > MAX_RESULT:
        raise ValueError(f"{size:,} bytes are more than {MAX_RESULT:,}")


def sampling_of(run: Sampling, **changes: object) -> Sampling:
    """Returns the run's sampling with the given changes. A change that is None is ignored."""
    named = {name: value for name, value in changes.items() if value is not None}
    if not named:
        return run
    if isinstance(named.get("stop"), str):
        named["stop"] = (named["stop"],)
    if isinstance(schema := named.get("json"), Mapping):
        named["json"] = schema_text(schema)
    kept = as_kept(named)
    try:
        sampling = msgspec.convert({**msgspec.structs.asdict(run), **kept}, Sampling)
    except msgspec.ValidationError as error:
        raise UsageError(wrong_type(kept) or f"sampling: {error}") from error
    if "" in sampling.stop:
        raise UsageError("stop: every reply holds the empty text; leave it out, or give None")
    return sampling


def pack_value(value: object, label: str) -> bytes:
    """Encodes a value for its record. Raises `TypeError` if it cannot be recorded."""
    try:
        packed = msgspec.msgpack.encode(value)
        msgspec.msgpack.decode(packed)
        _check_size(len(packed))
        return packed
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise TypeError(
            f"value {label!r} returned {type(value).__name__}, which cannot be recorded: {error}; "
            "return numbers, strings, bytes, lists or dicts"
        ) from error
