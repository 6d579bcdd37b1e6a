"""What a black-box agent asks and is answered, whatever wire it speaks.

A wire turns a provider's request into an `Ask`, and an `Answer` into that provider's JSON or its
stream of events. What lies between the two (binding, replay, sampling, recording) knows only these.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Raw, Struct

from holdfast.records.message import Message
from holdfast.records.redaction import without_hidden

LONGEST = 500
"""Characters of a whole message; a value that it quotes has less."""
LONGEST_NAME = 200
_KEY = re.compile(r"hf-[A-Za-z0-9_-]{8,}")


def quotable(text: str, most: int = LONGEST) -> str:
    """`text` on one line, without keys and other secrets, and no longer than `most`."""
    # A secret may lie across the end, and what is printed of a character may be longer than it.
    text = _KEY.sub("hf-…", without_hidden(text)[: 4 * most])
    if not text.isprintable():
        text = "".join(one if one.isprintable() else _escaped(one) for one in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shortened(text: str, most: int = LONGEST_NAME) -> str:
    """The beginning of `text`, for a message that is made `quotable`: half a secret in it would be
    recognized by nobody."""
    text = without_hidden(text)
    return text if len(text) <= most else f"{text[:most]}…"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()


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
    json: bool | str = False
    """As `Sampling` has it: whether the answer is JSON, or the schema that it fits."""
    reasoning_effort: str | None = None
    top_k: int | None = None
    tool_choice: str = ""
    """As `Sampling` has it."""
    parallel_tool_calls: bool = True
    seed: int | None = None
    """Of its samples, within the trajectory."""
    logprobs: bool = False
    """Whether the answer tells the logprobs of its tokens."""
    token_ids: bool = False
    """Whether the answer tells the ids of prompt and completion, as vLLM does."""
    include_usage: bool = False
    """Of a chat stream: whether its last event tells the usage."""
    text: str | None = None
    """A bare prompt instead of messages (`/v1/completions`)."""
    prompt_ids: tuple[int, ...] | None = None
    """A prompt of tokens instead of messages (`/v1/completions`)."""
    prompts: "tuple[str | tuple[int, ...], ...]" = ()
    """Several of either; each is answered by `n` choices, in order."""
    ignored: tuple[str, ...] = ()
    """What was taken out of the request before it was read (see `ignoring`)."""
    instructed: bool = False
    """Whether the first message is a response's instructions, which hold for that one alone."""
    previous: str | None = None
    """The response that it goes on from (`/v1/responses`), as the agent names it."""
    image_param: str = ""
    """What the request calls the first message that holds an image, where it does not call them as
    they stand here; "" where none does."""
    thinking_token_budget: int | None = None


class AnswerChoice(Struct, frozen=True):
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
    ids: tuple[int, ...] = ()
    """Of the sampled tokens, where they were asked for, and of the prompt."""
    prompt_ids: tuple[int, ...] = ()


class Answer(Struct, frozen=True):
    """What the agent is told. The same, byte for byte, whenever it is told again."""

    id: str
    """Letters and digits; wires put their own prefix before it."""
    created: int
    model: str
    choices: tuple[AnswerChoice, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def opening(self) -> "Opening":
        return Opening(
            self.id,
            self.created,
            self.model,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
        )


class Opening(Struct, frozen=True):
    """What is known of an answer when it begins."""

    id: str
    created: int
    model: str
    prompt_tokens: int
    cached_tokens: int = 0


class AnswerDelta(Struct, frozen=True):
    """More of one choice. It is durable."""

    index: int
    text: str
    is_reasoning: bool = False


class Untellable(Exception):
    """An answer that does not begin with what was told of it."""


class RequestRejected(Exception):
    """A request that cannot be answered; wires say it in their provider's shape."""

    def __init__(
        self, status: int, message: str, *, kind: str = "", param: str | None = None, code: str = ""
    ):
        message = quotable(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        """The provider's `type`, where it is not the usual one of the status."""
        self.param = None if param is None else quotable(param, LONGEST_NAME)
        self.code = code
        self.is_unknown = False
        """Whether it is about a member that the wire does not know."""
        self.is_unsupported = False
        """Whether it is about something that could be left out of the request."""


class EventStream(Protocol):
    """One answer as one connection is told it, as server-sent events, each complete with its blank
    line. It knows what it has told: everything together is the answer, and told once."""

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        """The answer goes on, or begins."""
        ...

    def end(self, answer: Answer) -> list[bytes]:
        """Whatever was not told of the answer, which may be all of it; the last event is the
        stream's terminal one. Raises `Untellable`."""
        ...

    def error(self, refused: RequestRejected) -> bytes:
        """There is no answer, although the stream has begun."""
        ...


class Past(Struct, frozen=True):
    """An answer that was told before."""

    answer: Answer
    conversation: tuple[Message, ...]
    """Up to the reply, and with it."""
    instructed: bool
    """See `Ask`."""


class Known(Protocol):
    """What is known of the trajectory whose call is read."""

    def messages(
        self, sent: Raw, read: Callable[[bytes], tuple[Message, ...]]
    ) -> tuple[Message, ...]:
        """The messages of a JSON array; `read` is asked for those that are new, as an array. It
        only saves time."""
        ...

    def answered(self, answer: str) -> Past | None:
        """The answer with this id; None if the trajectory has none."""
        ...


class Wire(Protocol):
    """One provider's way to say it. Pure: no I/O, no clock; only a stream has state."""

    def ask(self, body: bytes, known: Known | None = None) -> Ask:
        """Raises `RequestRejected` for what is malformed, unknown, or cannot be done. Without
        `known`, the same is read, but for what is referred to."""
        ...

    def answer(self, ask: Ask, answer: Answer) -> bytes:
        """The body of the answer, JSON."""
        ...

    def stream(self, ask: Ask) -> EventStream:
        """A stream that has told nothing yet."""
        ...

    def events(self, ask: Ask, answer: Answer) -> list[bytes]:
        """The whole answer in one go: the same bytes whenever it is told again."""
        ...

    def keep_alive(self) -> bytes:
        """What is sent while the stream has nothing to say yet."""
        ...

    def refusal(self, refused: RequestRejected) -> bytes:
        """The body of an error."""
        ...
