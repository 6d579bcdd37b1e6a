"""Finds tool calls in a text that is still being written, as a chat stream reports them.

It works like vLLM's Hermes parser: a call's name is reported when it is complete, its arguments as
they come, and the markup around them is never reported. Text that turns out not to be a call is
reported late, as content.
"""

import json
import re

from msgspec import Struct

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"arguments"\s*:\s*')
_MAY_CLOSE = re.compile(r"[}\s]*$")


class StreamedToolCalls(Struct):
    """The content of a text, and the tool calls in it with their arguments so far."""

    content: str
    calls: list[tuple[str, str]]


def parse_tool_calls(text: str, *, ended: bool) -> StreamedToolCalls:
    """Returns the content and the tool calls so far. When the text grows, earlier results only
    grow: no reported content or call is changed."""
    content, *blocks = text.split(OPENING)
    view = StreamedToolCalls(content, [])
    for block in blocks:
        inside, closed, after = block.partition(CLOSING)
        call = _call(inside, closed=bool(closed))
        if call is not None:
            view.calls.append(call)
            view.content += after
        elif closed or ended:
            view.content += OPENING + block
    if not ended:
        view.content = view.content[
            : len(view.content) - _partial_tag_length(view.content, OPENING)
        ]
    return view


def _call(inside: str, *, closed: bool) -> tuple[str, str] | None:
    name = _NAME.match(inside)
    if name is None:
        return None
    arguments = _ARGUMENTS.match(inside, name.end())
    raw = inside[arguments.end() :] if arguments is not None else ""
    # The last brace closes the call, not its arguments.
    if closed:
        raw = raw.rstrip().removesuffix("}").rstrip()
    else:
        raw = _MAY_CLOSE.sub("", raw[: len(raw) - _partial_tag_length(raw, CLOSING)])
    return json.loads(name[1], strict=False), raw


def _partial_tag_length(text: str, tag: str) -> int:
    """Returns the number of characters at the end of a text that may be the beginning of a tag."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
