"""Parses tool calls and reasoning in sampled text.

Invariant: no sampled text is lost, and no sampled text can raise an error. Text that is not a call
stays text, so that the model, a scorer and a reader can see it. Every string of a parsed message
can be stored as UTF-8.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.records.message import FunctionCall, Message, Role, ToolCall

_HERMES = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Attempt(Protocol):
    """A tool call as the `renderers` package reports it, good or bad."""

    raw: str
    name: str | None
    arguments: object
    token_span: tuple[int, int] | None
    status: str
    id: str | None


def parse_hermes(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Splits a reply into its text and its calls. A call is JSON between `<tool_call>` and
    `</tool_call>`."""
    parsed = [(match, _from_json(match[1])) for match in _HERMES.finditer(text)]
    calls = tuple(call for _, call in parsed if call is not None)
    if not calls:
        return text, ()
    rest, end = "", 0
    for match, call in parsed:
        if call is not None:
            rest, end = rest + text[end : match.start()], match.end()
    return (rest + text[end:]).strip(), calls


def split_reasoning(text: str, *, opened: bool) -> tuple[str | None, str]:
    """Splits a text into the reasoning and the text after it. Reasoning without an end takes the
    whole text."""
    body = text.lstrip()
    if body.startswith("<think>"):
        body = body.removeprefix("<think>")
    elif not opened:
        return None, text
    else:
        body = text
    reasoning, _, rest = body.partition("</think>")
    return reasoning.strip() or None, rest.lstrip("\n")


def from_attempts(
    content: str,
    reasoning: str | None,
    attempts: Iterable[Attempt],
    *,
    text_of: Callable[[int, int], str],
) -> Message:
    """Builds the message from the package's results. An attempt that is not a call goes back into
    the text.

    A call with a name is a call even if its arguments are not JSON. The tool reports that error.
    """
    calls: list[ToolCall] = []
    for attempt in attempts:
        call = _from_attempt(attempt)
        if call is not None:
            calls.append(call)
            continue
        span = attempt.token_span
        content = _join(content, text_of(*span) if span else attempt.raw)
    return assistant_message(content, reasoning=reasoning, calls=calls)


def without_calls(message: Message, text: str) -> Message:
    """Returns the message without calls, which become a part of its text. `text` is everything that
    was sampled."""
    if message.reasoning:
        text = text.partition(message.reasoning)[2].lstrip().removeprefix("</think>") or text
    return assistant_message(text.strip(), reasoning=message.reasoning)


def assistant_message(
    content: str, *, reasoning: str | None = None, calls: Sequence[ToolCall] = ()
) -> Message:
    return Message(
        Role.ASSISTANT,
        make_storable(content),
        tool_calls=tuple(calls),
        reasoning=make_storable(reasoning) if reasoning else None,
    )


def make_storable(text: str) -> str:
    """Replaces halves of surrogate pairs, which JSON can escape but no journal can store."""
    return text.encode("utf-8", "replace").decode() if _is_broken(text) else text


def _from_attempt(attempt: Attempt) -> ToolCall | None:
    # Compared by value, because the package's enumeration is not imported here.
    if attempt.status in ("unclosed_block", "missing_name", "malformed_structure"):
        return None
    return _call(attempt.name, attempt.arguments, identifier=attempt.id)


def _from_json(text: str) -> ToolCall | None:
    try:
        data = json.loads(text)
        return _call(data["name"], data["arguments"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _call(name: object, arguments: object, *, identifier: object = None) -> ToolCall | None:
    if not isinstance(name, str) or _is_broken(name) or arguments is None:
        return None
    has_id = isinstance(identifier, str) and not _is_broken(identifier)
    return ToolCall(
        str(identifier) if has_id else "", FunctionCall(name, _encode_arguments(arguments))
    )


def _encode_arguments(arguments: object) -> str:
    if isinstance(arguments, str):
        return make_storable(arguments)
    text = json.dumps(arguments, ensure_ascii=False)
    return json.dumps(arguments) if _is_broken(text) else text


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _join(content: str, more: str) -> str:
    return f"{content}\n{more}" if content else more
