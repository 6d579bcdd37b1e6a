"""Messages, in the shape of chat APIs.

Messages are immutable. Conversations with the same beginning share the message objects, so that an
identity comparison shows whether the history was rewritten. A function that takes a message also
takes a dict in OpenAI's shape (`as_message`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct, structs

from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError

_TAGS = "(?:think|thinking|budget:thinking)"
_THOUGHT = re.compile(f"(<{_TAGS}>)(.*?)(</{_TAGS}>)", re.DOTALL)
"""Matches reasoning at the beginning of a content, with the tags that LiteLLM recognizes."""
IMAGE = "image_url"
"""The type of an image part in a content."""


class Role(StrEnum):
    """The speaker of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    DEVELOPER = "developer"


class FunctionCall(Struct, frozen=True, gc=False):
    """The function name and the arguments of a tool call."""

    name: str
    arguments: str
    """The JSON that the model wrote. It may be invalid."""


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """One tool call of a reply: `id`, `name`, and `arguments`, the JSON text that the model wrote.

    The call is recorded as the model made it, before any check.
    """

    id: str
    function: FunctionCall
    type: str = "function"

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def arguments(self) -> str:
        return self.function.arguments


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of a conversation: a speaker (a `Role` or its text) and a content.

    Messages are immutable. `system`, `user` and `assistant` of this module create a message from a
    text.
    """

    role: Role
    content: str | list[dict[str, object]] | None = ""
    """A text, or a list of parts in the shape of chat APIs: `{"type": "text", "text": …}` and
    `{"type": "image_url", "image_url": {"url": …}}`."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        # Every decoded message passes here, so the usual case takes only two comparisons.
        if type(self.role) is not Role:
            structs.force_setattr(self, "role", _as_role(self.role, "a message"))
        if type(self.content) is not str and (wrong := _explain_content(self.content, "a message")):
            raise UsageError(wrong)

    @property
    def text(self) -> str:
        """Returns the text of the content as one string, for every shape of the content."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or ())

    @property
    def images(self) -> tuple[str, ...]:
        """Returns the URLs of the message's images, in order. A URL may contain the image itself
        (`data:`)."""
        if not isinstance(self.content, list):
            return ()
        return tuple(_url_of(part) for part in self.content if part.get("type") == IMAGE)

    def to_dict(self) -> dict[str, object]:
        """Returns the message as a dict in the shape of chat APIs. Reasoning becomes
        `reasoning_content`."""
        fields: dict[str, object] = {"role": Role(self.role).value}
        if self.content is not None:
            fields["content"] = self.content
        if self.reasoning is not None:
            fields["reasoning_content"] = self.reasoning
        if self.name is not None:
            fields["name"] = self.name
        if self.tool_call_id is not None:
            fields["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return fields

    @property
    def readable(self) -> str:
        """Returns the text of the message. A short label such as `[image png 12 kB]` replaces each
        part that is not text."""
        if not isinstance(self.content, list):
            return self.content or ""
        return "".join(str(part.get("text", _label(part))) for part in self.content)


def size_of(message: Message) -> int:
    """Returns the number of characters of a message, including its images' URLs, its calls and its
    reasoning. Rendering costs grow with this number."""
    content = message.content
    size = len(content) if isinstance(content, str) else len(message.text)
    size += sum(map(len, message.images))
    calls = sum(len(call.arguments) for call in message.tool_calls)
    return size + calls + len(message.reasoning or "")


def image(url: str, *, detail: str | None = None) -> dict[str, object]:
    """Returns an image part for a content. `url` is `data:image/png;base64,…` or a web address.

    `detail` tells the engine how closely to look at the image.
    """
    inner = {"url": url} if detail in (None, "auto") else {"url": url, "detail": detail}
    return {"type": IMAGE, "image_url": inner}


def content_of(parts: Iterable[str | dict[str, object]]) -> str | list[dict[str, object]]:
    """Returns the content in a canonical form, so that equal contents have the same form. The form
    is a text if there are only texts. Otherwise, it is a list of parts without two texts in a
    row."""
    texts: list[str] = []
    content: list[dict[str, object]] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        content += _text_part(texts)
        texts = []
        content.append(part)
    return [*content, *_text_part(texts)] if content else "".join(texts)


def _text_part(texts: list[str]) -> list[dict[str, object]]:
    text = "".join(texts)
    return [{"type": "text", "text": text}] if text else []


def _url_of(part: dict[str, object]) -> str:
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, dict) else inner
    return str(url or "")


def _label(part: dict[str, object]) -> str:
    if part.get("type") != IMAGE:
        return f"[{part.get('type', 'part')}]"
    url = _url_of(part)
    if not url.startswith("data:"):
        # The rest of the address is left out, because a signed address contains a secret.
        return f"[image from {url.partition('://')[2].partition('/')[0].rpartition('@')[2]}]"
    head, _, data = url.partition(",")
    kind = head.removeprefix("data:").partition(";")[0].removeprefix("image/") or "data"
    size = len(data) * 3 // 4 if head.endswith(";base64") else len(data)
    return f"[image {kind} {max(1, round(size / 1000)):,} kB]"


# --- reasoning inside a content


def set_reasoning_apart(message: Message) -> tuple[Message, tuple[str, ...]]:
    """Moves a `<think>…</think>` at the beginning of the content into the message's reasoning.
    Returns the new message and the two tags.

    Returns the same message and () if the content does not begin so. No character is lost: see
    `put_reasoning_back`.
    """
    thought = _THOUGHT.match(message.content) if isinstance(message.content, str) else None
    if thought is None:
        return message, ()
    text = message.text[thought.end() :]
    return structs.replace(message, content=text, reasoning=thought[2]), (thought[1], thought[3])


def put_reasoning_back(message: Message, tags: Sequence[str]) -> Message:
    """Returns the message as it was before its reasoning was set apart with these tags."""
    if not tags:
        return message
    opening, closing = tags
    text = f"{opening}{message.reasoning}{closing}{message.text}"
    return structs.replace(message, content=text, reasoning=None)


# --- messages from texts


def user(text: str) -> Message:
    """Returns a message of the user."""
    return Message(Role.USER, text)


def system(text: str) -> Message:
    """Returns a system message, which tells the model how to behave."""
    return Message(Role.SYSTEM, text)


def assistant(text: str) -> Message:
    """Returns an assistant message that no model sampled, such as an example. It is not trained
    on."""
    return Message(Role.ASSISTANT, text)


# --- messages from dicts


_MEMBERS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning")
_SILENT = (Role.ASSISTANT,)
"""Roles whose messages need no content: a reply that only calls tools has none."""


def as_message(value: object, *, where: str = "a message") -> Message:
    """Converts a value to a message. The value is a message, a dict in OpenAI's shape, an object
    with `model_dump`, or a text of the user. Raises `UsageError`, which names `where` and the bad
    member."""
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return user(value)
    fields = _fields_of(value)
    if fields is None:
        raise UsageError(
            f"{where} is {_kind(value)}; give a dict like "
            '{"role": "user", "content": "…"}, a holdfast.Message or a text'
        )
    plain = _plain(fields)
    _check_members(plain, where)
    try:
        return msgspec.convert(plain, Message)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(_explain(plain, where) or f"{where}: {error}") from error


def as_messages(values: object, *, where: str = "messages") -> tuple[Message, ...]:
    """Converts a list of values to messages. A plain text becomes one user message. Raises
    `UsageError`."""
    if isinstance(values, str):
        return (user(values),)
    if isinstance(values, Mapping | Message) or not isinstance(values, Iterable):
        raise UsageError(f"{where} is {_kind(values)}; give a list of messages: [{{…}}, …]")
    return tuple(as_message(value, where=f"{where}[{at}]") for at, value in enumerate(values))


def _fields_of(value: object) -> "dict[str, object] | None":
    if isinstance(value, Mapping):
        return {str(name): member for name, member in value.items()}
    dump = getattr(value, "model_dump", None)
    fields = dump(mode="json", exclude_none=True) if callable(dump) else None
    return fields if isinstance(fields, dict) and "role" in fields else None


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    """Removes null members, renames `reasoning_content` to `reasoning`, and turns call arguments
    that are objects into JSON text, because other tools write messages in these ways."""
    plain = {name: value for name, value in fields.items() if value is not None}
    if "reasoning_content" in plain:
        plain.setdefault("reasoning", plain.pop("reasoning_content"))
    if "content" in fields and "content" not in plain:
        plain["content"] = None
    calls = plain.get("tool_calls")
    if isinstance(calls, list | tuple):
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _plain_call(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    assert isinstance(call, Mapping), "it has a function"
    text = msgspec.json.encode(function["arguments"]).decode()
    return {**call, "function": {**function, "arguments": text}}


def _check_members(plain: Mapping[str, object], where: str) -> None:
    """Raises `UsageError` for missing members. The conversion finds members of a wrong type."""
    if "role" not in plain:
        raise UsageError(f"{where} has no 'role'{_instead(plain, 'role')}")
    _as_role(plain["role"], where)
    check_content(plain, where)


def check_content(plain: Mapping[str, object], where: str) -> None:
    """Raises `UsageError` if the content is missing. Otherwise a content under another name would
    give an empty message."""
    if "content" not in plain and plain.get("role") not in _SILENT:
        raise UsageError(f"{where} has no 'content'{_instead(plain, 'content')}")


def _as_role(value: object, where: str) -> Role:
    if isinstance(value, str) and value in list(Role):
        return Role(value)
    raise UsageError(f"{where}: role is {value!r:.100}; the roles are {', '.join(Role)}")


def _instead(plain: Mapping[str, object], missing: str) -> str:
    others = [name for name in plain if name not in _MEMBERS]
    if near := nearest(missing, others):
        return f"; is {near!r} meant for it?"
    return f", but {', '.join(map(repr, others))[:200]}" if others else ""


def _explain(plain: Mapping[str, object], where: str) -> str:
    """Describes the first member with a wrong type, and the right type; "" if all types are
    right."""
    if wrong := _explain_content(plain.get("content"), where):
        return wrong
    for name in ("tool_call_id", "name", "reasoning"):
        if name in plain and not isinstance(plain[name], str):
            return f"{where}: {name} is {_kind(plain[name])}; give a text"
    return _explain_calls(plain.get("tool_calls", ()), where)


def _explain_content(content: object, where: str) -> str:
    if content is not None and not isinstance(content, str | list | tuple):
        return f"{where}: content is {_kind(content)}; give a text, or a list of parts"
    for at, part in enumerate(content if isinstance(content, list | tuple) else ()):
        if not isinstance(part, Mapping):
            wants = '{"type": "text", "text": "…"}'
            return f"{where}: content[{at}] is {_kind(part)}; a part is a dict: {wants}"
    return ""


def _explain_calls(calls: object, where: str) -> str:
    wants = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{…}"}}'
    if not isinstance(calls, list | tuple):
        return f"{where}: tool_calls is {_kind(calls)}; give a list of calls: {wants}"
    for at, call in enumerate(calls):
        try:
            msgspec.convert(call, ToolCall)
        except msgspec.ValidationError as error:
            return f"{where}: tool_calls[{at}]: {error}; a call is {wants}"
    return ""


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"of type {type(value).__name__} ({value!r:.100})"
