"""Checks the input of `/v1/responses`, item by item, and converts it to messages.

One reply is several items (reasoning, a message, function calls), but one message here. The items
of one answer become the message of that answer again, in any order among the results of the calls.
`output` converts in the opposite direction. The ids that `output` makes show which items belong
together. If a client drops the ids, the order of the items shows it.

Texts and arguments are kept, character for character.
"""

import re
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from holdfast.gateway.protocol.messages import RequestLookup
from holdfast.gateway.wires.altering import WRONG_URL, is_image_url
from holdfast.gateway.wires.openai.errors import (
    convert,
    format_value,
    invalid,
    unsupported,
    unsupported_value,
)
from holdfast.gateway.wires.openai.parameters import Text
from holdfast.gateway.wires.responses.output import items_of
from holdfast.records.message import (
    FunctionCall,
    Message,
    Role,
    ToolCall,
    content_of,
    image,
    user,
)

WHOLE_INPUT = (
    "no conversation is kept on the server; send the whole conversation as 'input' with every "
    "request, or refer to a response."
)
ONLY_OWN = (
    "only what this trajectory was answered can be referred to; send the whole conversation as "
    "'input'."
)

# --- items. Fields of type `object` do not change a sample.


class _Tagged(Struct, tag_field="type", forbid_unknown_fields=True):
    """An item, or a part of one."""


class _InputText(_Tagged, tag="input_text"):
    text: str
    prompt_cache_breakpoint: object = None


class _OutputText(_Tagged, tag="output_text"):
    text: str
    annotations: object = None
    logprobs: object = None
    parsed: object = None


class _Text(_Tagged, tag="text"):
    text: str


class _Refusal(_Tagged, tag="refusal"):
    refusal: str


class _Image(_Tagged, tag="input_image"):
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    prompt_cache_breakpoint: object = None


class _File(Struct, tag="input_file", tag_field="type"):
    """A part with a file. It is always rejected."""


class _Audio(Struct, tag="input_audio", tag_field="type"):
    """A part with audio. It is always rejected."""


_Part = _InputText | _OutputText | _Text | _Refusal | _Image | _File | _Audio
_Content = str | list[_Part]


class _Thought(Struct, forbid_unknown_fields=True):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class _MessageItem(_Tagged, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content
    id: str | None = None
    status: object = None
    phase: object = None


class _CallItem(_Tagged, tag="function_call"):
    call_id: Text
    name: str
    arguments: str
    id: str | None = None
    namespace: None = None
    status: object = None
    caller: object = None
    created_by: object = None
    parsed_arguments: object = None


class _ResultItem(_Tagged, tag="function_call_output"):
    call_id: Text
    output: _Content
    id: str | None = None
    namespace: None = None
    name: object = None
    status: object = None
    caller: object = None
    created_by: object = None


class _ReasoningItem(_Tagged, tag="reasoning"):
    summary: list[_Thought] | None = None
    content: list[_Thought] | None = None
    id: str | None = None
    encrypted_content: object = None
    """Reasoning that another provider encrypted, so that it cannot be read."""
    status: object = None


_Item = _MessageItem | _CallItem | _ResultItem | _ReasoningItem
_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def parse_input(
    sent: str | list[dict[str, object]], known: RequestLookup | None = None
) -> tuple[list[Message], str]:
    """Returns the conversation of `input`, and the name of its first item with an image, or "" if
    there is none. Raises `RequestRejected`."""
    if isinstance(sent, str):
        return [user(sent)], ""
    items = convert(
        [_with_type(entry, f"input[{index}]", known) for index, entry in enumerate(sent)],
        list[_Item],
        root="input",
    )
    conversation = _Conversation()
    for index, item in enumerate(items):
        conversation.take(item, f"input[{index}]")
    return conversation.messages(), conversation.image_param


def _with_type(item: dict[str, object], at: str, known: RequestLookup | None) -> dict[str, object]:
    """Returns the item with its type, which clients may leave out for messages. An item that is
    only a reference is replaced by the item that it refers to."""
    kind = item.get("type")
    if kind is None and item.get("role") is not None:
        return {**item, "type": "message"}
    if kind is None or kind == "item_reference":
        return _resolve(str(item.get("id")), at, known)
    if kind not in _KINDS:
        why = f"items are of type {', '.join(_KINDS)}; tools other than functions do not run here."
        raise unsupported_value(f"{at}.type", kind, why)
    return item


def _resolve(name: str, at: str, known: RequestLookup | None) -> dict[str, object]:
    """Returns the item that was sent under this id. Raises `RequestRejected` if there is none."""
    past = known.earlier_answer(_first_group(_ours, name)) if known is not None else None
    items = [] if past is None else items_of(past.answer)
    referenced = next((item for item in items if item["id"] == name), None)
    if referenced is None:
        raise invalid(f"'{at}': Item with id {format_value(name)} not found: {ONLY_OWN}", param=at)
    return referenced


# --- items to messages

_ours = re.compile(r"(?:rs|msg|fc)_([A-Za-z0-9]+)_\d+").fullmatch
"""Matches the id of an item that `output` formatted. OpenAI's own ids have no second underscore."""
_numbered = re.compile(r"(call_[0-9a-f]{16})_\d+").fullmatch
"""Matches the id of a call that was sampled without an id: the generation's name, then the call's
number."""


class _Reply:
    """The items of one answer so far."""

    def __init__(self) -> None:
        self.answer = ""
        """The id of the answer, if the items name it."""
        self.generation = ""
        """The generation's name, if the ids of the calls name it."""
        self.text: str | None = None
        self.reasoning: str | None = None
        self.calls: list[ToolCall] = []
        self.has_results = False
        """Whether the result of a call came after this reply."""

    def has(self, answer: str, generation: str) -> bool | None:
        """Returns whether the ids show that an item belongs to this reply, or None if they do not
        show it."""
        if answer and self.answer:
            return answer == self.answer
        if generation and self.generation:
            return generation == self.generation
        return None

    def message(self) -> Message:
        return Message(
            Role.ASSISTANT, self.text or "", tuple(self.calls), reasoning=self.reasoning or None
        )


class _Conversation:
    def __init__(self) -> None:
        self._entries: list[Message | _Reply] = []
        self._reply: _Reply | None = None
        """The last reply, as long as only results of tools follow it."""
        self.image_param = ""

    def messages(self) -> list[Message]:
        return [
            message if isinstance(message, Message) else message.message()
            for message in self._entries
        ]

    def take(self, item: _Item, at: str) -> None:
        match item:
            case _MessageItem():
                self._take_message(item, at)
            case _CallItem():
                call = ToolCall(item.call_id, FunctionCall(item.name, item.arguments))
                self._reply_of(item.id, generation=_first_group(_numbered, call.id)).calls.append(
                    call
                )
            case _ResultItem():
                self._take_result(item, at)
            case _ReasoningItem():
                self._take_reasoning(item)

    def _take_message(self, item: _MessageItem, at: str) -> None:
        if item.role == "assistant":
            text = _text(item.content, f"{at}.content")
            self._reply_of(item.id, fits=lambda reply: reply.text is None).text = text
            return
        read = _content if item.role == "user" else _text
        self._add(Message(Role(item.role), read(item.content, f"{at}.content")), at)
        self._reply = None

    def _add(self, message: Message, at: str) -> None:
        self._entries.append(message)
        self.image_param = self.image_param or (f"{at}.content" if message.images else "")

    def _take_result(self, item: _ResultItem, at: str) -> None:
        content = _content(item.output, f"{at}.output")
        self._add(Message(Role.TOOL, content, tool_call_id=item.call_id), at)
        if self._reply is not None:
            self._reply.has_results = True

    def _take_reasoning(self, item: _ReasoningItem) -> None:
        summary = "\n\n".join(entry.text for entry in item.summary or ())
        text = "".join(part.text for part in item.content or ()) or summary
        if not text:
            return
        # Reasoning comes first. After text or calls, it begins another reply.
        reply = self._reply_of(
            item.id, follows=lambda reply: reply.text is None and not reply.calls
        )
        reply.reasoning = text if reply.reasoning is None else f"{reply.reasoning}\n\n{text}"

    def _reply_of(
        self,
        item_id: str | None,
        *,
        generation: str = "",
        follows: Callable[[_Reply], bool] = lambda reply: True,
        fits: Callable[[_Reply], bool] = lambda reply: True,
    ) -> _Reply:
        """Returns the reply of an item: the last reply or a new one.

        If the item names no reply, `follows` decides whether its place after the last reply makes
        it a part of that reply. `fits` decides whether the reply can hold the item.
        """
        reply, answer = self._reply, _first_group(_ours, item_id or "")
        if reply is not None:
            belongs = reply.has(answer, generation)
            joins = not reply.has_results and follows(reply) if belongs is None else belongs
            reply = reply if joins and fits(reply) else None
        if reply is None:
            reply = self._reply = _Reply()
            self._entries.append(reply)
        reply.answer = reply.answer or answer
        reply.generation = reply.generation or generation
        return reply


def _first_group(pattern: Callable[[str], re.Match[str] | None], identifier: str) -> str:
    match = pattern(identifier)
    return match.group(1) if match else ""


def _content(content: _Content, at: str) -> str | list[dict[str, object]]:
    if isinstance(content, str):
        return content
    return content_of(_part(part, f"{at}[{index}]") for index, part in enumerate(content))


def _text(content: _Content, at: str) -> str:
    """Returns the content of a message that must not contain images."""
    text = _content(content, at)
    if isinstance(text, str):
        return text
    why = "only messages of users and results of calls hold images; send parts of type output_text."
    raise unsupported_value(at, "input_image", why)


def _part(part: _Part, at: str) -> str | dict[str, object]:
    match part:
        case _InputText() | _OutputText() | _Text():
            return part.text
        case _Refusal():
            return part.refusal
        case _Image():
            return _image(part, at)
    why = "it is read by no engine; send parts of type input_text or input_image."
    raise unsupported_value(f"{at}.type", part.__struct_config__.tag, why)


def _image(part: _Image, at: str) -> dict[str, object]:
    if part.file_id is not None:
        raise unsupported(f"{at}.file_id", "no files are kept here; send 'image_url'.")
    if part.image_url is None or not is_image_url(part.image_url):
        raise invalid(f"Invalid '{at}.image_url': {WRONG_URL}", param=f"{at}.image_url")
    return image(part.image_url, detail=part.detail)
