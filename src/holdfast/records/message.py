"""Messages, in the shape that chat APIs speak.

A message is immutable: two conversations that share a beginning share its objects, and "was this
part of the history rewritten?" is a comparison of identities. Wherever one is taken, a dict in
OpenAI's shape is taken, too (`as_message`).
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
"""As LiteLLM recognizes it, at the beginning of a content."""
IMAGE = "image_url"
"""The type of a content's part that is an image."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    DEVELOPER = "developer"


class FunctionCall(Struct, frozen=True, gc=False):
    """The name and the arguments of a call."""

    name: str
    arguments: str
    """JSON as the model wrote it; it may be invalid, which is the model's doing."""


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """One tool call of a reply: `id`, `name`, and `arguments`, the JSON text that the model wrote.

    It is what the model asked for, before anything is checked.
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
    """One message of a conversation: who speaks (a `Role`, or its text), and what is said.

    Immutable; `system`, `user` and `assistant` of this module make one from a text.
    """

    role: Role
    content: str | list[dict[str, object]] | None = ""
    """A text, or a list of parts as chat APIs have them: `{"type": "text", "text": …}` and
    `{"type": "image_url", "image_url": {"url": …}}`."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        # Each message that is read comes by here: what is right costs two comparisons.
        if type(self.role) is not Role:
            structs.force_setattr(self, "role", _as_role(self.role, "a message"))
        if type(self.content) is not str and (wrong := _explain_content(self.content, "a message")):
            raise UsageError(wrong)

    @property
    def text(self) -> str:
        """The text of the content as one string, whatever its shape."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or ())

    @property
    def images(self) -> tuple[str, ...]:
        """The URLs of its images, in order. They may hold the image itself (`data:`)."""
        if not isinstance(self.content, list):
            return ()
        return tuple(_url_of(part) for part in self.content if part.get("type") == IMAGE)

    def to_dict(self) -> dict[str, object]:
        """The message as chat APIs have it; reasoning is `reasoning_content`."""
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
        """The text, with a short label in place of each part that is none: `[image png 12 kB]`."""
        if not isinstance(self.content, list):
            return self.content or ""
        return "".join(str(part.get("text", _label(part))) for part in self.content)


def size_of(message: Message) -> int:
    """Its characters, those of its calls and its reasoning included: what rendering it takes."""
    content = message.content
    size = len(content) if isinstance(content, str) else len(message.text)
    size += sum(map(len, message.images))
    calls = sum(len(call.arguments) for call in message.tool_calls)
    return size + calls + len(message.reasoning or "")


def image(url: str, *, detail: str | None = None) -> dict[str, object]:
    """The part of a content that is an image: `data:image/png;base64,…`, or where it is on the web.

    `detail` is the engine's: how closely it looks.
    """
    inner = {"url": url} if detail in (None, "auto") else {"url": url, "detail": detail}
    return {"type": IMAGE, "image_url": inner}


def content_of(parts: Iterable[str | dict[str, object]]) -> str | list[dict[str, object]]:
    """A content in the one form that equal ones share: a text; with images, a list of parts in
    which no two texts follow one another."""
    joined: list[str | dict[str, object]] = [""]
    for part in parts:
        last = joined[-1]
        if isinstance(part, str) and isinstance(last, str):
            joined[-1] = last + part
        else:
            joined.append(part)
    if len(joined) == 1 and isinstance(joined[0], str):
        return joined[0]
    return [
        {"type": "text", "text": part} if isinstance(part, str) else part
        for part in joined
        if part != ""
    ]


def _url_of(part: dict[str, object]) -> str:
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, dict) else inner
    return str(url or "")


def _label(part: dict[str, object]) -> str:
    if part.get("type") != IMAGE:
        return f"[{part.get('type', 'part')}]"
    url = _url_of(part)
    if not url.startswith("data:"):
        # Not the rest of the address: a signed one holds a secret.
        return f"[image from {url.partition('://')[2].partition('/')[0].rpartition('@')[2]}]"
    head, _, data = url.partition(",")
    kind = head.removeprefix("data:").partition(";")[0].removeprefix("image/") or "data"
    size = len(data) * 3 // 4 if head.endswith(";base64") else len(data)
    return f"[image {kind} {max(1, round(size / 1000)):,} kB]"


# --- reasoning inside a content


def set_reasoning_apart(message: Message) -> tuple[Message, tuple[str, ...]]:
    """The message with the `<think>…</think>` at the beginning of its content as its reasoning, and
    the two tags; the same message and () for any other. No character is lost: see
    `put_reasoning_back`."""
    thought = _THOUGHT.match(message.content) if isinstance(message.content, str) else None
    if thought is None:
        return message, ()
    text = message.text[thought.end() :]
    return structs.replace(message, content=text, reasoning=thought[2]), (thought[1], thought[3])


def put_reasoning_back(message: Message, tags: Sequence[str]) -> Message:
    """The message as it was before its reasoning was set apart with these tags."""
    if not tags:
        return message
    opening, closing = tags
    text = f"{opening}{message.reasoning}{closing}{message.text}"
    return structs.replace(message, content=text, reasoning=None)


# --- messages from texts


def user(text: str) -> Message:
    """A message of the user's."""
    return Message(Role.USER, text)


def system(text: str) -> Message:
    """A message of the system's: how the model is to behave."""
    return Message(Role.SYSTEM, text)


def assistant(text: str) -> Message:
    """A message of the assistant's that nobody sampled: an example, say. It is not trained on."""
    return Message(Role.ASSISTANT, text)


# --- messages from dicts


_MEMBERS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning")
_SILENT = (Role.ASSISTANT,)
"""Who may say nothing: a reply that only calls tools has no content."""


def as_message(value: object, *, where: str = "a message") -> Message:
    """A message from one, from a dict in OpenAI's shape, from an object that dumps itself as one
    (`model_dump`), or from a text, which is the user's. `UsageError` names `where` and the bad
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
    """The messages of a conversation. A plain text is one user message."""
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
    """Other tools write what is absent as null, reasoning under its chat name, and the arguments of
    a call as an object."""
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
    """Checks for missing members. Members of a wrong type are noticed by the conversion."""
    if "role" not in plain:
        raise UsageError(f"{where} has no 'role'{_instead(plain, 'role')}")
    _as_role(plain["role"], where)
    check_content(plain, where)


def check_content(plain: Mapping[str, object], where: str) -> None:
    """A message under another name would be an empty one."""
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
    """The member with a wrong type, and the right type; "" if all are right."""
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
