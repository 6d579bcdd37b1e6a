"""The request and the answer of a call, the same for every wire.

A wire parses a provider's JSON into the `GenerationRequest` of a call, and formats the call's
`Answer` as the provider's JSON or stream of events. Everything in between (binding, replay,
sampling, recording) uses only these two types.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Raw, Struct

from holdfast.records.encoding.redaction import without_hidden
from holdfast.records.errors import Cause, HoldfastError
from holdfast.records.message import Message

MAX_MESSAGE_CHARS = 500
"""The most characters of an error message."""
MAX_NAME_CHARS = 200
_KEY = re.compile(r"hf-[A-Za-z0-9_-]{8,}")


def sanitize(text: str, most: int = MAX_MESSAGE_CHARS) -> str:
    """Returns `text` on one line, without keys and other secrets, and at most `most` characters
    long."""
    # A secret may cross the end, and an escaped character is longer than the character.
    text = _KEY.sub("hf-…", without_hidden(text)[: 4 * most])
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _escape(char) for char in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shorten(text: str, most: int = MAX_NAME_CHARS) -> str:
    """Returns the beginning of `text` without secrets. Use it before `sanitize`, which could not
    recognize half a secret."""
    text = without_hidden(text)
    return text if len(text) <= most else f"{text[:most]}…"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


class AlteringParameters(Struct, frozen=True, omit_defaults=True):
    """Parameters that a request can have beyond its provider's own. They have vLLM's names, as in
    `Sampling`. None keeps the run's value."""

    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None


class GenerationRequest(Struct, frozen=True):
    """The request of one call."""

    model: str
    """The model's name as the agent sent it. The answer has the same name."""
    messages: tuple[Message, ...]
    """The whole conversation, the system prompt first, in the order in which it is rendered."""
    tools: tuple[dict[str, object], ...] = ()
    """The tools in the format of chat completions: `{"type": "function", "function": {…}}`."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    json: bool | str = False
    """Whether the answer must be JSON, or the schema that it must follow (as in `Sampling`)."""
    reasoning_effort: str | None = None
    top_k: int | None = None
    tool_choice: str = ""
    """Which tool the model must call, as in `Sampling`."""
    parallel_tool_calls: bool = True
    seed: int | None = None
    """The seed of the samples, within the trajectory."""
    logprobs: bool = False
    """Whether the answer has the logprobs of its tokens."""
    token_ids: bool = False
    """Whether the answer has the ids of prompt and completion, as vLLM's does."""
    include_usage: bool = False
    """Whether the last event of a chat stream has the usage."""
    text: str | None = None
    """A raw prompt instead of messages (`/v1/completions`)."""
    prompt_ids: tuple[int, ...] | None = None
    """A prompt of tokens instead of messages (`/v1/completions`)."""
    prompts: "tuple[str | tuple[int, ...], ...]" = ()
    """Several raw prompts. Each is answered by `n` choices, in order."""
    ignored: tuple[str, ...] = ()
    """The fields that were removed before the request was parsed (see `unsupported`)."""
    instructed: bool = False
    """Whether the first message has instructions, which hold for this response alone."""
    previous: str | None = None
    """The id of the response that this request continues (`/v1/responses`)."""
    altering: "AlteringParameters" = AlteringParameters()
    chat_template_kwargs: str | None = None
    """As in `Sampling`. None keeps the run's value."""
    image_param: str = ""
    """The request's own name for the first message with an image, or "" if there is no image."""
    thinking_token_budget: int | None = None


class AnswerChoice(Struct, frozen=True):
    """One sampled reply."""

    message: Message
    """The message with the ids of its tool calls. Reasoning is separate from the text."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    stop_string: str | None = None
    """The stop string that ended the reply, or None."""
    tokens: tuple[str, ...] = ()
    """The text of each sampled token, if logprobs were requested."""
    logprobs: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()
    """The ids of the sampled tokens, if they were requested. `prompt_ids` are the ids of the
    prompt."""
    prompt_ids: tuple[int, ...] = ()


class Answer(Struct, frozen=True):
    """The answer of a call. It has the same bytes whenever it is sent again."""

    id: str
    """The answer's id. It has letters and digits only, and wires put their own prefix before it."""
    created: int
    model: str
    choices: tuple[AnswerChoice, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """How many tokens of the prompt an earlier prompt of the conversation already had."""
    engine_cached_tokens: int = 0
    reasoning_tokens: int = 0
    """The number of reasoning tokens that the engine reports, if any."""

    @property
    def all_cached_tokens(self) -> int:
        return max(self.cached_tokens, self.engine_cached_tokens)

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
    """The part of an answer that is known when it begins."""

    id: str
    created: int
    model: str
    prompt_tokens: int
    cached_tokens: int = 0


class AnswerDelta(Struct, frozen=True):
    """A further part of one choice. It is durable before it is sent."""

    index: int
    text: str
    is_reasoning: bool = False


class StreamMismatch(Exception):
    """An answer does not begin with the part that a stream has already sent."""


class RequestRejected(Exception):
    """A request that gets an error instead of an answer. Each wire formats it as its provider
    does."""

    def __init__(
        self, status: int, message: str, *, kind: str = "", param: str | None = None, code: str = ""
    ):
        message = sanitize(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        """The provider's `type` of the error, if it is not the usual type for the status."""
        self.param = None if param is None else sanitize(param, MAX_NAME_CHARS)
        self.code = code
        self.is_unknown = False
        """Whether the request was rejected for a member that the wire does not know."""
        self.is_unsupported = False
        """Whether the request was rejected for something that could be left out of it."""


class EventStream(Protocol):
    """One answer on one connection, as server-sent events, each complete with its blank line. The
    stream keeps track of what it has sent, so that all events together contain each part of the
    answer once."""

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        """Returns the events of more deltas. The first time, they begin with the events of the
        opening."""
        ...

    def end(self, answer: Answer) -> list[bytes]:
        """Returns the events of the rest of the answer, which can be all of it, and the terminal
        event. Raises `StreamMismatch`."""
        ...

    def error(self, rejection: RequestRejected) -> bytes:
        """Returns the event of an error after the stream has begun."""
        ...


class EarlierAnswer(Struct, frozen=True):
    """An earlier answer, to which a request refers."""

    answer: Answer
    conversation: tuple[Message, ...]
    """The conversation. Its last message is the reply."""
    instructed: bool
    """See `GenerationRequest`."""


class RequestLookup(Protocol):
    """Looks up earlier messages and answers of the request's trajectory, for a wire."""

    def messages(
        self, sent: Raw, parse: Callable[[bytes], tuple[Message, ...]]
    ) -> tuple[Message, ...]:
        """Returns the messages of a JSON array. `parse` gets only the new ones, which saves
        time."""
        ...

    def earlier_answer(self, answer: str) -> EarlierAnswer | None:
        """Returns the answer with this id, or None if the trajectory does not have it."""
        ...


class Wire(Protocol):
    """The format of one provider. It does no I/O and uses no clock. Only streams have state."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        """Returns the request of a body. Raises `RequestRejected` if the body is malformed, has
        unknown fields, or asks for something that cannot be done. Without `known`, references to
        earlier answers are not resolved."""
        ...

    def format_answer(self, request: GenerationRequest, answer: Answer) -> bytes:
        """Returns the body of the response as JSON."""
        ...

    def stream(self, request: GenerationRequest) -> EventStream:
        """Returns a new stream."""
        ...

    def keep_alive(self) -> bytes:
        """Returns the bytes to send while a stream has no new events."""
        ...

    def format_error(self, rejection: RequestRejected) -> bytes:
        """Returns the body of an error."""
        ...


class AgentFailed(HoldfastError):
    """The agent's process ended without having done its task."""

    cause = Cause.CODE
    retryable = True
    arose_here = False


class AgentKilled(AgentFailed):
    """A signal ended the agent's process. That is more likely the machine's fault than the
    agent's."""

    cause = Cause.ENVIRONMENT


class RefusedCall(AgentFailed):
    """The agent ended as if its task was done, although one of its calls was rejected. The call
    would be rejected again, so the trajectory is not retried."""

    retryable = False


class UnansweredCall(AgentFailed):
    """The agent ended as if its task was done, although the gateway could not answer one of its
    calls."""

    cause = Cause.INFRASTRUCTURE


class AgentSilent(HoldfastError):
    """The agent is alive but no longer makes calls."""

    cause = Cause.ENVIRONMENT
    retryable = True
    arose_here = False
