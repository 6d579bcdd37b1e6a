"""Converts Anthropic's content blocks from and to messages.

Invariant: a message that a client sends back is the same message again, with its text, reasoning,
and calls with their ids, names and arguments. Arguments come back as compact JSON in the order in
which they were sent, and are equal as JSON values. The message is the same whether the client sends
it as one turn or several, and as a string or blocks.

Text blocks of one turn are joined without a separator. A result's `is_error` is dropped, because no
chat template has a field for it; the model reads the text of the result.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import structs

from holdfast.gateway.protocol.messages import shorten
from holdfast.gateway.wires.altering import WRONG_URL, is_image_url
from holdfast.gateway.wires.anthropic.errors import invalid, unsupported
from holdfast.gateway.wires.anthropic.request import (
    AssistantContent,
    AssistantTurn,
    Base64Image,
    CountRequest,
    ImageBlock,
    SystemTurn,
    TextBlock,
    Thinking,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, content_of, image

INVALID_KEY = "INVALID_JSON"
"""The key under which arguments are sent that are not a JSON object, as Anthropic recommends."""
Block = dict[str, object]

# A coding agent writes a line into its system prompt that changes with every request. With this
# line, no request would continue the previous one. Engines do not need it.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


def parse_messages(request: CountRequest) -> tuple[Message, ...]:
    """Returns the conversation. The system prompt comes first, and the results of tools come before
    the user's text."""
    system = _system(request.system)
    replies = [Message(Role.SYSTEM, system)] if system else []
    names: dict[str, str] = {}
    reply: Message | None = None
    for number, turn in enumerate(request.messages):
        if isinstance(turn, AssistantTurn):
            # Consecutive turns of the assistant are one turn.
            reply = _extend_reply(turn.content, f"messages.{number}", before=reply)
            names.update((call.id, call.name) for call in reply.tool_calls)
            continue
        if reply is not None:
            replies.append(reply)
            reply = None
        replies += _parse_turn(turn, names, f"messages.{number}")
    return tuple(replies) if reply is None else (*replies, reply)


def image_param(request: CountRequest) -> str:
    """Returns the name of the first message with an image, or "" if there is none."""
    for number, turn in enumerate(request.messages):
        content = turn.content if isinstance(turn, UserTurn) else ()
        if any(_holds_image(block) for block in content):
            return f"messages.{number}.content"
    return ""


def _holds_image(block: object) -> bool:
    if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
        return any(map(_holds_image, block.content))
    return isinstance(block, ImageBlock)


def format_blocks(message: Message) -> list[Block]:
    """Returns a message as the blocks of a response."""
    requests: list[Block] = []
    if message.reasoning:
        signature = signature_of(message.reasoning)
        requests.append({"type": "thinking", "thinking": message.reasoning, "signature": signature})
    if message.text:
        requests.append({"type": "text", "text": message.text})
    for call in message.tool_calls:
        sent = input_of(call.arguments)
        requests.append({"type": "tool_use", "id": call.id, "name": call.name, "input": sent})
    return requests


def signature_of(reasoning: str) -> str:
    """Returns a signature of the reasoning. Clients need one and send it back, but it is never
    read."""
    digest = hashlib.sha256(b"thinking\0" + reasoning.encode()).digest()
    return base64.b64encode(digest).decode()


def input_of(arguments: str) -> dict[str, object]:
    """Returns arguments as an object, which `arguments_of` turns back into the same arguments."""
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        decoded = None
    if isinstance(decoded, dict) and not _is_wrapped(decoded):
        return decoded
    return {INVALID_KEY: arguments}


def arguments_of(sent: dict[str, object]) -> str:
    if _is_wrapped(sent):
        return str(sent[INVALID_KEY])
    return msgspec.json.encode(sent).decode()


def _is_wrapped(sent: dict[str, object]) -> bool:
    return len(sent) == 1 and isinstance(sent.get(INVALID_KEY), str)


def _system(system: str | list[TextBlock] | None) -> str:
    parts = [system] if isinstance(system, str) else [part.text for part in system or ()]
    return "".join(_BILLING_LINE.sub("", part) for part in parts)


def _parse_turn(
    turn: UserTurn | SystemTurn, names: dict[str, str], where: str
) -> Iterable[Message]:
    if isinstance(turn, SystemTurn):
        return [Message(Role.SYSTEM, _text(turn.content, where))]
    if isinstance(turn.content, str):
        sent: Sequence[TextBlock | ImageBlock | ToolResultBlock] = [TextBlock(turn.content)]
    else:
        sent = turn.content
    results = [block for block in sent if isinstance(block, ToolResultBlock)]
    content = _content([block for block in sent if not isinstance(block, ToolResultBlock)], where)
    if not results and not content:
        raise invalid(where, "user messages must have non-empty content")
    messages = [_tool_message(block, names, where) for block in results]
    return [*messages, Message(Role.USER, content)] if content else messages


def _tool_message(block: ToolResultBlock, names: dict[str, str], where: str) -> Message:
    name = names.get(block.tool_use_id)
    if name is None:
        called = shorten(block.tool_use_id)
        raise invalid(
            f"{where}.content",
            f"unexpected `tool_use_id` found in `tool_result` blocks: {called}. "
            "Each `tool_result` block must have a corresponding `tool_use` block before it.",
        )
    content = _content(block.content or "", where)
    # An error without a text would look like a success.
    content = content or ("Error" if block.is_error else "")
    return Message(Role.TOOL, content, tool_call_id=block.tool_use_id, name=name)


def _extend_reply(content: AssistantContent, where: str, *, before: Message | None) -> Message:
    sent = [TextBlock(content)] if isinstance(content, str) else content
    text = _text([block for block in sent if isinstance(block, TextBlock)], where)
    reasoning = "".join(block.thinking for block in sent if isinstance(block, Thinking))
    calls = tuple(_call(block, where) for block in sent if isinstance(block, ToolUseBlock))
    if before is None:
        return Message(Role.ASSISTANT, text, tool_calls=calls, reasoning=reasoning or None)
    return structs.replace(
        before,
        content=before.text + text,
        tool_calls=before.tool_calls + calls,
        reasoning=(before.reasoning or "") + reasoning or None,
    )


def _call(block: ToolUseBlock, where: str) -> ToolCall:
    if block.caller not in (None, {"type": "direct"}):
        raise unsupported(f"{where}.content.caller")
    return ToolCall(block.id, FunctionCall(block.name, arguments_of(block.input)))


def _content(
    content: str | Sequence[TextBlock | ImageBlock], where: str
) -> str | list[dict[str, object]]:
    if isinstance(content, str):
        return content
    return content_of(
        _text([block], where) if isinstance(block, TextBlock) else _image(block, where)
        for block in content
    )


def _image(block: ImageBlock, where: str) -> dict[str, object]:
    source = block.source
    if isinstance(source, Base64Image):
        return image(f"data:{source.media_type};base64,{source.data}")
    if not is_image_url(source.url):
        raise invalid(f"{where}.content.source.url", WRONG_URL)
    return image(source.url)


def _text(content: str | Iterable[TextBlock], where: str) -> str:
    if isinstance(content, str):
        return content
    blocks = list(content)
    if any(block.citations for block in blocks):
        raise unsupported(f"{where}.content.citations")
    return "".join(block.text for block in blocks)
