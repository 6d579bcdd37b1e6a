"""The input of `/v1/responses`: items, read strictly, and converted to messages.

One reply is several items (reasoning, a message, function calls) and one message here. Items that
came from one answer become the message that was answered, in whatever order the client keeps them
with the results of the calls; `responses_output` is the other direction. They are told apart by the
ids that they were given there, and where a client drops those, by their order.

Texts and arguments are kept as they came, character for character.
"""

import re
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from holdfast.gateway.protocol.messages import RequestLookup
from holdfast.gateway.wires.images import WRONG_URL, is_image_url
from holdfast.gateway.wires.openai.errors import (
    converted,
    shown,
    unsupported,
    unsupported_value,
    wrong,
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

# --- what may be sent. Members of type `object` change nothing that is sampled.


class _InputText(Struct, tag="input_text", tag_field="type", forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: object = None


class _OutputText(Struct, tag="output_text", tag_field="type", forbid_unknown_fields=True):
    text: str
    annotations: object = None
    logprobs: object = None
    parsed: object = None


class _Text(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    text: str


class _Refusal(Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True):
    refusal: str


class _Image(Struct, tag="input_image", tag_field="type", forbid_unknown_fields=True):
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    prompt_cache_breakpoint: object = None


class _File(Struct, tag="input_file", tag_field="type"):
    """Never read further: it is refused."""


class _Audio(Struct, tag="input_audio", tag_field="type"):
    """Refused."""


_Part = _InputText | _OutputText | _Text | _Refusal | _Image | _File | _Audio
_Content = str | list[_Part]


class _Thought(Struct, forbid_unknown_fields=True):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class _Said(Struct, tag="message", tag_field="type", forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content
    id: str | None = None
    status: object = None
    phase: object = None


class _Called(Struct, tag="function_call", tag_field="type", forbid_unknown_fields=True):
    call_id: Text
    name: str
    arguments: str
    id: str | None = None
    namespace: None = None
    status: object = None
    caller: object = None
    created_by: object = None
    parsed_arguments: object = None


class _Result(Struct, tag="function_call_output", tag_field="type", forbid_unknown_fields=True):
    call_id: Text
    output: _Content
    id: str | None = None
    namespace: None = None
    name: object = None
    status: object = None
    caller: object = None
    created_by: object = None


class _Reasoned(Struct, tag="reasoning", tag_field="type", forbid_unknown_fields=True):
    summary: list[_Thought] | None = None
    content: list[_Thought] | None = None
    id: str | None = None
    encrypted_content: object = None
    """Of somebody else: there is nothing to read in it."""
    status: object = None


_Item = _Said | _Called | _Result | _Reasoned
_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def messages(
    sent: str | list[dict[str, object]], known: RequestLookup | None = None
) -> tuple[list[Message], str]:
    """The conversation that `input` holds, or refers to, and the name of its first item that holds
    an image; "" where none does."""
    if isinstance(sent, str):
        return [user(sent)], ""
    items = converted(
        [_named(entry, f"input[{place}]", known) for place, entry in enumerate(sent)],
        list[_Item],
        root="input",
    )
    conversation = _Conversation()
    for place, item in enumerate(items):
        conversation.take(item, f"input[{place}]")
    return conversation.messages(), conversation.image_param


def _named(item: dict[str, object], at: str, known: RequestLookup | None) -> dict[str, object]:
    """The item with its type, which a message need not say."""
    kind = item.get("type")
    if kind is None and item.get("role") is not None:
        return {**item, "type": "message"}
    if kind is None or kind == "item_reference":
        return _referred(str(item.get("id")), at, known)
    if kind not in _KINDS:
        why = f"items are of type {', '.join(_KINDS)}; tools other than functions do not run here."
        raise unsupported_value(f"{at}.type", kind, why)
    return item


def _referred(name: str, at: str, known: RequestLookup | None) -> dict[str, object]:
    """The item that was sent under this id."""
    past = known.earlier_answer(_found(_ours, name)) if known is not None else None
    items = [] if past is None else items_of(past.answer)
    found = next((item for item in items if item["id"] == name), None)
    if found is None:
        raise wrong(f"'{at}': Item with id {shown(name)} not found: {ONLY_OWN}", param=at)
    return found


# --- what it says

_ours = re.compile(r"(?:rs|msg|fc)_([A-Za-z0-9]+)_\d+").fullmatch
"""An item id of `responses_output`; those of OpenAI have no second underscore."""
_numbered = re.compile(r"(call_(?:\d+_\d+_\d+|[0-9a-f]{16}))_\d+").fullmatch
"""An id that a generation gives to a call which came without one: a name of its own (its path, in
older records), then the call's number."""


class _Reply:
    """The items of one answer, as far as they have come."""

    def __init__(self) -> None:
        self.answer = ""
        """The id of the answer, where the items name it."""
        self.generation = ""
        """Its name, where the ids of the calls name it."""
        self.text: str | None = None
        self.reasoning: str | None = None
        self.calls: list[ToolCall] = []
        self.is_behind = False
        """Whether the result of a call came after it."""

    def has(self, answer: str, generation: str) -> bool | None:
        """Whether the ids say that an item belongs to it; None if they do not say."""
        if answer and self.answer:
            return answer == self.answer
        if generation and self.generation:
            return generation == self.generation
        return None

    def message(self) -> Message:
        return Message(
            Role.ASSISTANT, self.text or "", tuple(self.calls), reasoning=self.reasoning or None
        )


def _anything(reply: _Reply) -> bool:
    return True


def _has_no_words(reply: _Reply) -> bool:
    return reply.text is None


def _has_only_thought(reply: _Reply) -> bool:
    """Reasoning comes first: after words or calls it begins another reply."""
    return reply.text is None and not reply.calls


class _Conversation:
    def __init__(self) -> None:
        self._said: list[Message | _Reply] = []
        self._reply: _Reply | None = None
        """The last one, while nobody but tools has spoken since."""
        self.image_param = ""

    def messages(self) -> list[Message]:
        return [
            message if isinstance(message, Message) else message.message() for message in self._said
        ]

    def take(self, item: _Item, at: str) -> None:
        match item:
            case _Said():
                self._take_words(item, at)
            case _Called():
                call = ToolCall(item.call_id, FunctionCall(item.name, item.arguments))
                self._reply_of(item.id, generation=_found(_numbered, call.id)).calls.append(call)
            case _Result():
                self._take_result(item, at)
            case _Reasoned():
                self._take_reasoning(item)

    def _take_words(self, item: _Said, at: str) -> None:
        if item.role == "assistant":
            text = _text(item.content, f"{at}.content")
            self._reply_of(item.id, fits=_has_no_words).text = text
            return
        read = _content if item.role == "user" else _text
        self._add(Message(Role(item.role), read(item.content, f"{at}.content")), at)
        self._reply = None

    def _add(self, message: Message, at: str) -> None:
        self._said.append(message)
        self.image_param = self.image_param or (f"{at}.content" if message.images else "")

    def _take_result(self, item: _Result, at: str) -> None:
        content = _content(item.output, f"{at}.output")
        self._add(Message(Role.TOOL, content, tool_call_id=item.call_id), at)
        if self._reply is not None:
            self._reply.is_behind = True

    def _take_reasoning(self, item: _Reasoned) -> None:
        summary = "\n\n".join(entry.text for entry in item.summary or ())
        text = "".join(part.text for part in item.content or ()) or summary
        if not text:
            return
        reply = self._reply_of(item.id, follows=_has_only_thought)
        reply.reasoning = text if reply.reasoning is None else f"{reply.reasoning}\n\n{text}"

    def _reply_of(
        self,
        item_id: str | None,
        *,
        generation: str = "",
        follows: Callable[[_Reply], bool] = _anything,
        fits: Callable[[_Reply], bool] = _anything,
    ) -> _Reply:
        """The reply that an item belongs to: the last one or a new one.

        `follows`: whether, by its order alone, it goes on with a reply; `fits`: whether that reply
        has room for it at all."""
        reply, answer = self._reply, _found(_ours, item_id or "")
        if reply is not None:
            said = reply.has(answer, generation)
            joins = not reply.is_behind and follows(reply) if said is None else said
            reply = reply if joins and fits(reply) else None
        if reply is None:
            reply = self._reply = _Reply()
            self._said.append(reply)
        reply.answer = reply.answer or answer
        reply.generation = reply.generation or generation
        return reply


def _found(pattern: Callable[[str], re.Match[str] | None], identifier: str) -> str:
    found = pattern(identifier)
    return found.group(1) if found else ""


def _content(content: _Content, at: str) -> str | list[dict[str, object]]:
    if isinstance(content, str):
        return content
    return content_of(_part(part, f"{at}[{place}]") for place, part in enumerate(content))


def _text(content: _Content, at: str) -> str:
    """The content of a message that holds no images."""
    found = _content(content, at)
    if isinstance(found, str):
        return found
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
        raise wrong(f"Invalid '{at}.image_url': {WRONG_URL}", param=f"{at}.image_url")
    return image(part.image_url, detail=part.detail)
