"""Messages, in the shape that chat APIs speak.

A message is immutable: two conversations that share a beginning share its objects, and "was this
part of the history rewritten?" is a comparison of identities.
"""

from enum import StrEnum

from msgspec import Struct


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
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The content as one string, whatever its shape."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or ())


def size_of(message: Message) -> int:
    """Its characters, those of its calls and its reasoning included: what rendering it takes."""
    content = message.content
    said = len(content) if isinstance(content, str) else len(message.text)
    calls = sum(len(call.arguments) for call in message.tool_calls)
    return said + calls + len(message.reasoning or "")


def user(text: str) -> Message:
    """A message of the user's."""
    return Message(Role.USER, text)


def system(text: str) -> Message:
    """A message of the system's: how the model is to behave."""
    return Message(Role.SYSTEM, text)


def assistant(text: str) -> Message:
    """A message of the assistant's that nobody sampled: an example, say. It is not trained on."""
    return Message(Role.ASSISTANT, text)
