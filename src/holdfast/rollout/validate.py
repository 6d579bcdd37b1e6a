"""What a rollout gives to its steps, checked before anything is sampled or recorded.

A mistake is a `UsageError` of one line: it names what was given, and says what to do.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.policy.rendering.renderer import ByteRenderer, Renderer
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, ToolCall, user
from holdfast.records.sampling import Sampling, schema_text
from holdfast.rollout.replay.reply import Reply
from holdfast.rollout.tools.tool import MAX_RESULT, Tool, name_in

Given = TypeVar("Given", Message, ToolCall)


def message_of(given: object) -> Message:
    """A message, or what the user says."""
    if isinstance(given, Message):
        return given
    if isinstance(given, str):
        return user(given)
    raise UsageError(f"t.add takes Messages or strings, not {_named(given)}{_meant(given)}")


def _named(given: object) -> str:
    return "None" if given is None else f"{type(given).__name__} {given!r:.100}"


def _meant(given: object) -> str:
    if isinstance(given, list | tuple):
        return "; did you mean *messages?"
    if isinstance(given, dict):
        return '; did you mean holdfast.Message("user", …), or *messages?'
    if isinstance(given, Reply):
        return "; t.generate added the reply already"
    return "; did you forget to await it?" if inspect.isawaitable(given) else ""


def check_conversation(
    messages: Sequence[Message], tools: Sequence[dict[str, object]], renderer: Renderer
) -> None:
    """What can be asked of the model at all."""
    # Bytes are framed, not templated: only they can begin with nothing.
    if not messages and not isinstance(renderer, ByteRenderer):
        raise UsageError(
            "the conversation is empty: add a message first, as in t.add(*t.task.messages)"
        )
    if tools and not getattr(renderer, "shows_tools", True):
        raise UsageError(
            "the model's chat template does not show tools to it: describe them in a message and "
            "call generate without tools, or use a template that has them"
        )


def check_messages(messages: Sequence[object]) -> None:
    for one in messages:
        if not isinstance(one, Message):
            raise UsageError(f"t.messages holds Messages, not {_named(one)}{_meant(one)}")


def check_calls(
    calls: Sequence[ToolCall], tools: Sequence[Tool], shown: Sequence[dict[str, object]]
) -> None:
    """A tool that the model was shown has to be there when the model calls it: were the model told
    that there is no such tool, it would pay for the rollout's mistake."""
    names = [one.name for one in tools]
    for call in calls:
        if not isinstance(call, ToolCall):
            meant = "; did you mean t.tools?" if isinstance(call, list | tuple) else ""
            raise UsageError(f"a call is one of reply.tool_calls, not {_named(call)}{meant}")
        recordable(call)
        if call.name not in names and any(name_in(schema) == call.name for schema in shown):
            raise UsageError(
                f"the model was shown the tool {call.name!r}, but t.tool was not given it: "
                f"t.tool(call, {call.name}), or t.tools(calls, *tools)"
            )


def check_rollouts(rollouts: Sequence[object], where: str) -> None:
    for one in rollouts:
        if inspect.iscoroutine(one):
            one.close()
            raise UsageError(f"{where} calls the function itself: {where}({one.__name__})")
        if not callable(one):
            meant = "; did you mean *rollouts?" if isinstance(one, list | tuple) else ""
            raise UsageError(
                f"{where} takes async functions of a Rollout, not {_named(one)}{meant}"
            )


def label_of(function: object, name: object) -> str:
    """What a value is matched by."""
    if not callable(function):
        raise UsageError(f"t.value takes a function that is called once, not {_named(function)}")
    label = name or getattr(function, "__qualname__", type(function).__name__)
    return str(label).encode(errors="backslashreplace").decode()


def recordable(given: Given) -> Given:
    """Refuses, before anything is done, what cannot be recorded or never read again."""
    try:
        found = msgspec.msgpack.encode(given)
        _check_size(len(found))
        return msgspec.msgpack.decode(found, type=type(given))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = {Message: "message", ToolCall: "call"}[type(given)]
        raise UsageError(f"{given!r:.1000} is no {kind} that can be recorded: {error}") from error


def _check_size(size: int) -> None:
    # What no journal takes would stop the run, and not only this trajectory.
    if size > MAX_RESULT:
        raise ValueError(f"{size:,} bytes are more than {MAX_RESULT:,}")


def sampling_of(run: Sampling, **changes: object) -> Sampling:
    """The run's sampling, but for what is given."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        return run
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if isinstance(schema := given.get("json"), Mapping):
        given["json"] = schema_text(schema)
    try:
        found = msgspec.convert({**msgspec.structs.asdict(run), **given}, Sampling)
    except msgspec.ValidationError as error:
        raise UsageError(f"sampling: {error}") from error
    if "" in found.stop:
        raise UsageError("stop: every reply holds the empty text; leave it out, or give None")
    return found


def packed(value: object, label: str) -> bytes:
    """A value as it is recorded."""
    try:
        found = msgspec.msgpack.encode(value)
        msgspec.msgpack.decode(found)
        _check_size(len(found))
        return found
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise TypeError(
            f"value {label!r} returned {type(value).__name__}, which cannot be recorded: {error}; "
            "return numbers, strings, bytes, lists or dicts"
        ) from error
