"""The interface of a dialect, and what the dialects share: one kind of engine, all in one file.

A dialect knows the names of fields and paths, what its engine cannot do, and how its engine is
recognised. It has no sockets, no retries and no validation: `completion_builder` validates the
pieces. Nothing is ever padded or guessed.
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
"""The errors of msgspec for invalid JSON, bad UTF-8 and deep nesting."""
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
    """It starts the noise of a request: only a whole request repeats. vLLM."""
    POSITION = "position"
    """It names the noise of each position: a completion that continues from its tokens gets the
    same tokens as without an interruption. The embedded engine; SGLang with an option."""
    NONE = "none"
    """Nothing."""


UNFINISHED = "unfinished-update"
"""What an engine calls its weights while others are sent to it. One that still does is half loaded;
one that was started anew does not."""
OUR_ADAPTERS = "holdfast-"
"""How the names of adapters begin that a training of ours loads."""


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
    """The renderer of its tokens, for a model without a tokenizer's folder."""
    parent: str | None = None
    """Of an adapter: the model that it was loaded for."""

    @property
    def is_ours(self) -> bool:
        """Whether it is an adapter that a training of ours has loaded."""
        return self.id.startswith(OUR_ADAPTERS) and self.parent != self.id

    @property
    def owner(self) -> str:
        return (self.owned_by or "").lower()


class Models(Struct):
    data: list[ServedModel]


def drop_none(fields: dict[str, object]) -> dict[str, object]:
    """The fields of a request body that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def add_extra(body: dict[str, object], extra: Mapping[str, object], *, at: str = "") -> None:
    """Adds members to a request body; raises `Unsupported` for one that it has already."""
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
    """The prompt that the engine repeats; undecoded, if it need not be decoded."""
    versions: tuple[VersionSpan, ...] | None = None
    """Spans of all tokens of this try so far, counted from its first token."""
    message: Message | None = None
    total: int | None = None
    """The engine's count of the tokens of this try so far."""
    prompt_tokens: int | None = None
    """The engine's count of the tokens of the prompt."""
    usage: Usage | None = None
    """All that the engine counts of this try so far."""
    experts: ExpertRows | None = None
    """Of all tokens that were asked for, once the try has ended."""
    reasoning_tags: tuple[str, ...] = ()
    """Between which the message's reasoning was part of its content."""

    @property
    def is_only_tokens(self) -> bool:
        """Whether it has nothing but tokens, each with its logprob."""
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
"""Reads one event of a stream, and may keep state between events; None: an empty event."""


class InvalidAnswer(Exception):
    """A fault of an answer. `evidence`: the data of the wrong event, if it is one of several."""

    evidence: bytes = b""


class EngineError(Exception):
    """The answer is an error, although its status is 200."""

    def __init__(self, message: str, status: int = 500):
        super().__init__(message)
        self.status = status


class UnknownEngine(Protocol):
    """An engine that a dialect asks what it is."""

    url: str
    model: str
    described: ServedModel
    seeds: Seeds

    async def ask(self, path: str) -> bytes | None:
        """What it has at a path; None if it has nothing there. Raises `EndpointDown` where nobody
        knows, because it does not answer."""
        ...


def fields_of(raw: bytes | None) -> dict[str, object]:
    """The JSON object of an answer; empty if it is none."""
    try:
        fields = msgspec.json.decode(raw or b"null")
    except UNREADABLE:
        return {}
    return fields if isinstance(fields, dict) else {}


class Dialect:
    """One kind of engine."""

    kind: ClassVar[Kind]
    path: ClassVar[str]
    has_tokens: ClassVar[bool] = True
    """Whether it has ids and logprobs: without them, there is no training."""
    administers: ClassVar[str] = ""
    """The engine whose routes switch the weights; "": unknown."""
    lacks: ClassVar[tuple[str, ...]] = ()
    """Parameters of `Sampling` that the engine does not have."""
    takes_structure: ClassVar[bool] = True
    """Whether the engine can keep a reply to tool calls."""
    ends_reasoning: ClassVar[bool] = True
    """Whether the engine may know `thinking_token_budget`."""
    version_path: ClassVar[str] = "/weight_info"
    """Where the engine may say which version its weights have."""
    no_route: ClassVar[tuple[int, ...]] = (404, 405)
    """The statuses of a path that the engine does not have."""
    is_optional: ClassVar[bool] = False
    """Whether engines of its kind may have it switched off."""
    offers: ClassVar[str] = ""
    """What an engine of this kind that speaks another dialect does not give; "": nothing."""

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        """Whether it is worth a try, by what the engine calls itself."""
        raise NotImplementedError

    async def describe(self, engine: UnknownEngine) -> None:
        """Reads what the engine's list of models does not say."""

    def check(self, request: Request) -> None:
        """Raises `Unsupported` for what the engine can do only apart."""

    def body(self, request: Request) -> dict[str, object]:
        """The request of one try."""
        raise NotImplementedError

    def whole(self, body: bytes) -> Piece:
        """A whole answer. Raises `InvalidAnswer` or `EngineError`."""
        raise NotImplementedError

    def reader(self) -> Reader:
        raise NotImplementedError


class ChoicesDialect(Dialect):
    """Reads answers and events that have choices and a usage."""

    decoder: ClassVar["msgspec.json.Decoder[Any]"]

    def read(self, answer: Any) -> Piece:
        """The one choice of what `decoder` gave."""
        raise NotImplementedError

    def whole(self, body: bytes) -> Piece:
        piece = self.read(decode(self.decoder, body))
        if piece.ids is None:
            raise InvalidAnswer("it has no token_ids (return_token_ids was asked for)")
        return check_ended(piece)

    def event(self, data: bytes) -> Piece:
        answer = decode(self.decoder, data)
        if not answer.choices:  # The last event of a stream holds the usage and nothing else.
            return add_usage(Piece(), answer.usage)
        return self.read(answer)

    def reader(self) -> Reader:
        return self.event


def one_try(
    request: Request, model: str, *, max_tokens: int, stream: bool = False, adapter: str = ""
) -> Request:
    """The request of a first try."""
    return structs.replace(
        request,
        model=model,
        max_tokens=max_tokens,
        stream=stream,
        adapter=adapter,
        prompt_json=Raw(encode_prompt(request.prompt)),
    )


def stream_options(request: Request) -> dict[str, object]:
    """The fields that request a stream of vLLM and Fireworks."""
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
    """As vLLM writes it."""

    version: str
    start: int
    end: int


class UsageBody(Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: Raw = NULL
    completion_tokens_details: Raw = NULL


class CompletionChoice(Struct):
    """Of `/v1/completions` with token ids."""

    finish_reason: str | None = None
    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: Raw = NULL


_UNCOUNTED = UsageBody()


def add_usage(piece: Piece, usage: UsageBody | None) -> Piece:
    """The piece with the engine's counts of tokens."""
    usage = usage or _UNCOUNTED
    piece.total, piece.prompt_tokens = usage.completion_tokens, usage.prompt_tokens
    piece.usage = usage_of(usage)
    return piece


def usage_of(body: UsageBody) -> Usage | None:
    """None where the engine does not count."""
    if body.prompt_tokens is None or body.completion_tokens is None:
        return None
    return Usage(
        body.prompt_tokens,
        body.completion_tokens,
        _detail(body.prompt_tokens_details, "cached_tokens"),
        _detail(body.completion_tokens_details, "reasoning_tokens"),
    )


def _detail(details: Raw, name: str) -> int:
    """Details are no reason to refuse an answer, whatever they are like."""
    if details == NULL:
        return 0
    try:
        return _count(msgspec.json.decode(details), name) or 0
    except UNREADABLE:
        return 0


def chat_usage(found: Raw) -> Usage | None:
    """The usage that a chat API reports. APIs differ in names and shapes, so unreadable usage is
    not counted, and no error."""
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
    """An answer without the prompt that it repeats, if that is the sent one, byte for byte:
    skipping its numbers takes ten times as long as comparing them. Any other prompt stays, and is
    checked later.

    The match is a field and not part of a string: there, its quotes would be escaped.
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
        # JSON has no NaN, but Python's json writes it, and engines use that.
        if b"NaN" in body or b"Infinity" in body:
            raise InvalidAnswer("a logprob is not finite") from error
        raise InvalidAnswer(f"the answer is malformed ({error})") from error


def raise_if_error(body: bytes) -> None:
    """Raises `EngineError` for the error of an engine that died after it had sent status 200."""
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
    """Checks the ids beside logprobs, where an engine sends them. Their number is checked later."""
    if named != ids and any(
        name not in (None, item) for name, item in zip(named, ids, strict=False)
    ):
        raise InvalidAnswer("its logprobs belong to other tokens than its ids")


def check_ended(piece: Piece) -> Piece:
    """The piece. Raises `InvalidAnswer` for a whole answer without a finish reason."""
    if piece.finish_reason is None:
        raise InvalidAnswer("finish_reason None")
    return piece


def version_spans(found: list[VersionSpanBody] | None) -> tuple[VersionSpan, ...] | None:
    if found is None:
        return None
    return tuple(VersionSpan(span.version, span.start, span.end) for span in found)


def openai_fields(request: Request) -> dict[str, object]:
    """The fields of OpenAI's requests; None: the request does not have it."""
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
    """Parameters with the same names in vLLM, SGLang and Fireworks; None leaves them out."""
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
