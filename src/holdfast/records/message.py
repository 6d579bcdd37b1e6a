"""Messages, in the shape that chat APIs speak.

A message is immutable: two conversations that share a beginning share its objects, and "was this
part of the history rewritten?" is a comparison of identities.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

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
    """What a call names, and what it is given."""

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
    """One message of a conversation: who speaks (a `Role`), and what is said.

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


def user(text: str) -> Message:
    """A message of the user's."""
    return Message(Role.USER, text)


def system(text: str) -> Message:
    """A message of the system's: how the model is to behave."""
    return Message(Role.SYSTEM, text)


def assistant(text: str) -> Message:
    """A message of the assistant's that nobody sampled: an example, say. It is not trained on."""
    return Message(Role.ASSISTANT, text)
