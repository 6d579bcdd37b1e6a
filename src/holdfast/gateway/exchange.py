"""What a black-box agent asks and is answered, whatever wire it speaks.

A wire turns a provider's request into an `Ask`, and an `Answer` into that provider's JSON or its
stream of events. What lies between the two (binding, replay, sampling, recording) knows only these.
"""

from typing import Protocol

from msgspec import Struct

from holdfast.records.message import Message


class Ask(Struct, frozen=True):
    """One call of an agent."""

    model: str
    """As the agent names it; it is told the same name back."""
    messages: tuple[Message, ...]
    """The whole conversation, the system prompt first, in the order in which it is rendered."""
    tools: tuple[dict[str, object], ...] = ()
    """As chat completions have them: `{"type": "function", "function": {…}}`."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    logprobs: bool = False
    """Whether the answer tells the logprobs of its tokens."""
    include_usage: bool = False
    """Of a chat stream: whether its last event tells the usage."""
    text: str | None = None
    """A bare prompt instead of messages (`/v1/completions`)."""
    prompt_ids: tuple[int, ...] | None = None
    """A prompt of tokens instead of messages (`/v1/completions`)."""


class Choice(Struct, frozen=True):
    """One sampled reply."""

    message: Message
    """With the ids of its tool calls; reasoning apart from the text."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    stop_string: str | None = None
    """The stop string that ended it, if one did."""
    tokens: tuple[str, ...] = ()
    """The text of each sampled token, where logprobs were asked for."""
    logprobs: tuple[float, ...] = ()


class Answer(Struct, frozen=True):
    """What the agent is told. The same, byte for byte, whenever it is told again."""

    id: str
    """Letters and digits; wires put their own prefix before it."""
    created: int
    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Refused(Exception):
    """A request that cannot be answered; wires say it in their provider's shape."""

    def __init__(
        self, status: int, message: str, *, kind: str = "", param: str | None = None, code: str = ""
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        """The provider's `type`, where it is not the usual one of the status."""
        self.param = param
        self.code = code


class Wire(Protocol):
    """One provider's way to say it. Pure: no I/O, no clock, no state."""

    def ask(self, body: bytes) -> Ask:
        """Raises `Refused` for what is malformed, unknown, or cannot be done."""
        ...

    def answer(self, ask: Ask, answer: Answer) -> bytes:
        """The body of the answer, JSON."""
        ...

    def events(self, ask: Ask, answer: Answer) -> list[bytes]:
        """The answer as server-sent events, each complete with its blank line; the last one is the
        stream's terminal event."""
        ...

    def keep_alive(self) -> bytes:
        """What is sent while the stream has nothing to say yet."""
        ...

    def refusal(self, refused: Refused) -> bytes:
        """The body of an error."""
        ...
