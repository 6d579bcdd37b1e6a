"""The interface of a dialect, and the code that the dialects share. Each kind of engine has one
file.

A dialect knows the names of fields and paths, what its engine cannot do, and how to recognise its
engine. It has no sockets, no retries and no validation: `completion_builder` validates the pieces.
Missing data is never filled in or guessed.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from holdfast.policy.dialects.prompt_json import encode_prompt
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported
from holdfast.records.message import Message
from holdfast.records.samples.experts import ExpertRows
from holdfast.records.sampling import Sampling, response_format_of
from holdfast.records.step import VersionSpan
from holdfast.records.usage import Usage, count_of

UNREADABLE = (ValueError, RecursionError)
"""The errors that msgspec raises for invalid JSON, bad UTF-8 and deep nesting."""
NULL = Raw(b"null")
Answer = TypeVar("Answer")


class Kind(StrEnum):
    """The dialects, by the names that `--dialect` takes."""

    VLLM = "vllm"
    """`/v1/completions` with token ids, of vLLM and the embedded engine."""
    VLLM_GENERATE = "vllm-generate"
    """`/inference/v1/generate`, with the version of the weights for each token."""
    SGLANG = "sglang"
    """`/generate` with `input_ids`."""
    FIREWORKS = "fireworks"
    """`/v1/completions` of Fireworks."""
    CHAT = "chat"
    """`/v1/chat/completions`: no token ids, for evaluation only."""


class Seeds(StrEnum):
    """The effect of a seed."""

    REQUEST = "request"
    """The seed starts the random numbers of a request, so a reply repeats only if the whole request
    is repeated. Example: vLLM."""
    POSITION = "position"
    """The seed and a token's position determine the token's random number. A completion that
    continues after an interruption gets the same tokens as without the interruption. Examples: the
    embedded engine; SGLang with an option."""
    NONE = "none"
    """The engine takes no seeds."""


UNFINISHED = "unfinished-update"
"""The version that an engine reports while new weights are sent to it. If the engine still reports
it later, the engine has loaded only a part of the new weights. A restarted engine does not report
it."""
OUR_ADAPTERS = "holdfast-"
"""The prefix of the names of adapters that our trainings load."""


class ServedModel(Struct):
    """An entry of `/v1/models`."""

    id: str
    max_model_len: int | None = None
    context_length: int | None = None
    root: str | None = None
    owned_by: str | None = None
    seeds: str | None = None
    """A value of `Seeds`, if the engine publishes it."""
    logprobs_mode: str | None = None
    """A value of `LogprobsMode`, if the engine publishes it."""
    renderer: str | None = None
    """The renderer of the model's tokens, for a model without a tokenizer's folder."""
    parent: str | None = None
    """For an adapter, the model that it was loaded for."""

    @property
    def is_ours(self) -> bool:
        """Returns whether this is an adapter that one of our trainings has loaded."""
        return self.id.startswith(OUR_ADAPTERS) and self.parent != self.id

    @property
    def owner(self) -> str:
        return (self.owned_by or "").lower()


class Models(Struct):
    data: list[ServedModel]


def drop_none(fields: dict[str, object]) -> dict[str, object]:
    """Returns the fields of a request body that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def add_extra(body: dict[str, object], extra: Mapping[str, object], *, at: str = "") -> None:
    """Adds members to a request body. Raises `Unsupported` for a member that the body has
    already."""
    for name, value in extra.items():
        held = body.get(name)
        if isinstance(held, dict) and isinstance(value, Mapping):
            add_extra(held, value, at=f"{at}{name}.")
        elif name in body:
            raise Unsupported("extra_body", f"extra_body.{at}{name}: the request has one already")
        else:
            body[name] = value


class Piece(Struct):
    """The content of one answer, or of one event of a stream."""

    ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None
    model: str | None = None
    prompt: Sequence[int] | Raw | None = None
    """The prompt as the engine repeats it. It stays undecoded if it need not be decoded."""
    versions: tuple[VersionSpan, ...] | None = None
    """Spans of all tokens of this try so far, counted from its first token."""
    message: Message | None = None
    total: int | None = None
    """The engine's count of the tokens of this try so far."""
    prompt_tokens: int | None = None
    """The engine's count of the tokens of the prompt."""
    usage: Usage | None = None
    """All token counts that the engine reports for this try so far."""
    experts: ExpertRows | None = None
    """The routed experts of all requested tokens, once the try has ended."""
    reasoning_tags: tuple[str, ...] = ()
    """The tags around the reasoning, if it was part of the message's content."""

    @property
    def is_only_tokens(self) -> bool:
        """Returns whether the piece holds only tokens, each with its logprob."""
        ids, logprobs = self.ids, self.logprobs
        return (
            self.finish_reason is None
            and self.prompt is None
            and self.versions is None
            and self.total is None
            and self.prompt_tokens is None
            and self.usage is None
            and type(ids) is type(logprobs) is list
            and len(ids) == len(logprobs)
        )


Reader = Callable[[bytes], Piece | None]
"""Reads one event of a stream, and may keep state between events. Returns None for an empty event.
"""


class InvalidAnswer(Exception):
    """A fault of an answer. `evidence` is the data of the faulty event, if there were several
    events."""

    evidence: bytes = b""


class EngineError(Exception):
    """An error in the body of an answer whose status is 200."""

    def __init__(self, message: str, status: int = 500):
        super().__init__(message)
        self.status = status


class UnknownEngine(Protocol):
    """An engine whose kind is still unknown. A dialect asks it to find out."""

    url: str
    model: str
    described: ServedModel
    seeds: Seeds

    async def ask(self, path: str) -> bytes | None:
        """Returns the body at a path, or None if the engine has no such path. Raises `EndpointDown`
        if the engine does not answer, because then the path may or may not exist."""
        ...


def fields_of(raw: bytes | None) -> dict[str, object]:
    """Returns the JSON object of an answer, or an empty one if the answer is not an object."""
    try:
        fields = msgspec.json.decode(raw or b"null")
    except UNREADABLE:
        return {}
    return fields if isinstance(fields, dict) else {}


class Dialect:
    """The HTTP interface of one kind of engine."""

    kind: ClassVar[Kind]
    path: ClassVar[str]
    has_tokens: ClassVar[bool] = True
    """Whether the engine gives ids and logprobs. Training needs both."""
    administers: ClassVar[str] = ""
    """The kind of engine whose routes update the weights, or "" if these routes are unknown."""
    lacks: ClassVar[tuple[str, ...]] = ()
    """Parameters of `Sampling` that the engine does not have."""
    takes_structure: ClassVar[bool] = True
    """Whether the engine can constrain a reply to tool calls."""
    ends_reasoning: ClassVar[bool] = True
    """Whether the engine may know `thinking_token_budget`."""
    version_path: ClassVar[str] = "/weight_info"
    """The path at which the engine may report the version of its weights."""
    no_route: ClassVar[tuple[int, ...]] = (404, 405)
    """The statuses with which the engine answers if it does not have the path."""
    is_optional: ClassVar[bool] = False
    """Whether engines of this kind may have the dialect switched off."""
    offers: ClassVar[str] = ""
    """What is lost if an engine of this kind speaks another dialect, or ""."""

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        """Returns whether to try the dialect, judged by what the engine says about itself."""
        raise NotImplementedError

    async def describe(self, engine: UnknownEngine) -> None:
        """Asks the engine for properties that its list of models does not contain."""

    def check(self, request: Request) -> None:
        """Raises `Unsupported` for a combination of features that the engine supports only
        separately."""

    def body(self, request: Request) -> dict[str, object]:
        """Returns the body of one try."""
        raise NotImplementedError

    def whole(self, body: bytes) -> Piece:
        """Reads a whole answer. Raises `InvalidAnswer` or `EngineError`."""
        raise NotImplementedError

    def reader(self) -> Reader:
        raise NotImplementedError


class ChoicesDialect(Dialect):
    """A dialect whose answers and events have choices and a usage."""

    decoder: ClassVar["msgspec.json.Decoder[Any]"]

    def read(self, answer: Any) -> Piece:
        """Reads the only choice of an answer that `decoder` has decoded."""
        raise NotImplementedError

    def whole(self, body: bytes) -> Piece:
        piece = self.read(decode(self.decoder, body))
        if piece.ids is None:
            raise InvalidAnswer("it has no token_ids (return_token_ids was asked for)")
        return check_ended(piece)

    def event(self, data: bytes) -> Piece:
        answer = decode(self.decoder, data)
        if not answer.choices:  # The last event of a stream contains only the usage.
            return add_usage(Piece(), answer.usage)
        return self.read(answer)

    def reader(self) -> Reader:
        return self.event


def one_try(
    request: Request, model: str, *, max_tokens: int, stream: bool = False, adapter: str = ""
) -> Request:
    """Returns the request in the form of its first try."""
    return structs.replace(
        request,
        model=model,
        max_tokens=max_tokens,
        stream=stream,
        adapter=adapter,
        prompt_json=Raw(encode_prompt(request.prompt)),
    )


def stream_options(request: Request) -> dict[str, object]:
    """Returns the fields that ask vLLM and Fireworks for a stream."""
    return {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}


class _Numbered(Protocol):
    index: int


Choice = TypeVar("Choice", bound=_Numbered)


class _Error(Struct):
    message: str = ""
    code: int | str | None = None


class _Failed(Struct):
    error: _Error | str
    object: str = ""


class VersionSpanBody(Struct):
    """A version span as vLLM writes it."""

    version: str
    start: int
    end: int


class UsageBody(Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: Raw = NULL
    completion_tokens_details: Raw = NULL


class CompletionChoice(Struct):
    """A choice of `/v1/completions` with token ids."""

    finish_reason: str | None = None
    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: Raw = NULL


_UNCOUNTED = UsageBody()


def add_usage(piece: Piece, usage: UsageBody | None) -> Piece:
    """Adds the engine's counts of tokens to the piece and returns it."""
    usage = usage or _UNCOUNTED
    piece.total, piece.prompt_tokens = usage.completion_tokens, usage.prompt_tokens
    piece.usage = usage_of(usage)
    return piece


def usage_of(body: UsageBody) -> Usage | None:
    """Returns the usage, or None if the engine does not count."""
    if body.prompt_tokens is None or body.completion_tokens is None:
        return None
    return Usage(
        body.prompt_tokens,
        body.completion_tokens,
        _detail(body.prompt_tokens_details, "cached_tokens"),
        _detail(body.completion_tokens_details, "reasoning_tokens"),
    )


def _detail(details: Raw, name: str) -> int:
    """Returns a detail of the usage. Returns 0 if the detail is unreadable, because details are no
    reason to refuse an answer."""
    if details == NULL:
        return 0
    try:
        return _count(msgspec.json.decode(details), name) or 0
    except UNREADABLE:
        return 0


def chat_usage(found: Raw) -> Usage | None:
    """Returns the usage that a chat API reports. APIs differ in names and shapes, so unreadable
    usage gives None instead of an error."""
    try:
        fields = msgspec.json.decode(found)
    except UNREADABLE:
        return None
    if not isinstance(fields, dict):
        return None
    prompt, completion = _count(fields, "prompt_tokens"), _count(fields, "completion_tokens")
    if prompt is None and completion is None:
        return None
    return Usage(
        prompt or 0,
        completion or 0,
        _count(fields.get("prompt_tokens_details"), "cached_tokens")
        or _count(fields, "prompt_cache_hit_tokens")
        or 0,
        _count(fields.get("completion_tokens_details"), "reasoning_tokens")
        or _count(fields, "reasoning_tokens")
        or 0,
    )


def _count(fields: object, name: str) -> int | None:
    return count_of(fields.get(name)) if isinstance(fields, dict) else None


_ECHO = b'"prompt_token_ids":'


def remove_echo(body: bytes, prompt: Raw) -> bytes:
    """Removes the prompt that an answer repeats, if it equals the sent prompt byte for byte.
    Skipping its numbers takes ten times as long as comparing them. Any other prompt stays and is
    checked later.

    The match cannot lie inside a string, because the quotes in a string would be escaped.
    """
    at = body.find(_ECHO)
    start = at + len(_ECHO)
    end = start + len(prompt)
    if at < 1 or not body.startswith(prompt, start):
        return body
    is_field = body[at - 1] in b"{," and body[end : end + 1] in (b"}", b",")
    return body[:start] + NULL + body[end:] if is_field else body


def decode(decoder: "msgspec.json.Decoder[Answer]", body: bytes) -> Answer:
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise_if_error(body)
        # JSON has no NaN, but engines use Python's json, which writes it.
        if b"NaN" in body or b"Infinity" in body:
            raise InvalidAnswer("a logprob is not finite") from error
        raise InvalidAnswer(f"the answer is malformed ({error})") from error


def raise_if_error(body: bytes) -> None:
    """Raises `EngineError` if the body reports an error. An engine may fail after it has sent
    status 200."""
    try:
        failed = msgspec.json.decode(body, type=_Failed).error
    except UNREADABLE:
        return
    if isinstance(failed, str):
        raise EngineError(failed)
    code = failed.code if isinstance(failed.code, int) and failed.code >= 400 else 500
    raise EngineError(failed.message or "an error without a message", code)


def only_choice(choices: Sequence[Choice]) -> Choice:
    if len(choices) != 1:
        raise InvalidAnswer(f"{len(choices)} choices, not 1")
    if choices[0].index:
        raise InvalidAnswer(f"choice {choices[0].index} of an answer that has only choice 0")
    return choices[0]


def check_token_ids(named: Sequence[int | None], ids: Sequence[int]) -> None:
    """Raises `InvalidAnswer` if logprobs belong to other tokens than `ids`. `named` are the ids
    that the engine sent with the logprobs; None stands for an id that it did not send. The number
    of logprobs is checked later."""
    if named != ids and any(
        name not in (None, item) for name, item in zip(named, ids, strict=False)
    ):
        raise InvalidAnswer("its logprobs belong to other tokens than its ids")


def check_ended(piece: Piece) -> Piece:
    """Returns the piece. Raises `InvalidAnswer` for a whole answer without a finish reason."""
    if piece.finish_reason is None:
        raise InvalidAnswer("finish_reason None")
    return piece


def version_spans(found: list[VersionSpanBody] | None) -> tuple[VersionSpan, ...] | None:
    if found is None:
        return None
    return tuple(VersionSpan(span.version, span.start, span.end) for span in found)


def openai_fields(request: Request) -> dict[str, object]:
    """Returns the fields of OpenAI's requests. A field that the request does not set is None."""
    sampling = request.sampling
    return {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "stop": list(sampling.stop) or None,
        "seed": request.seed,
        "response_format": None if sampling.json is False else response_format_of(sampling),
        "thinking_token_budget": sampling.thinking_token_budget,
        **altering_fields(sampling),
        **stream_options(request),
    }


def altering_fields(sampling: Sampling) -> dict[str, object]:
    """Returns the parameters that have the same names in vLLM, SGLang and Fireworks. A parameter
    that is None is left out of the request."""
    return {
        "min_p": sampling.min_p or None,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "repetition_penalty": None
        if sampling.repetition_penalty == 1
        else sampling.repetition_penalty,
        "logit_bias": sampling.biases if sampling.logit_bias else None,
        "ignore_eos": sampling.ignore_eos or None,
    }
