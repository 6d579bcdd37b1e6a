"""Decoding and checks that the dialects share."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from holdfast.policy.dialects.dialect import (
    UNREADABLE,
    EngineError,
    InvalidAnswer,
    Piece,
    Reader,
    SampleRequest,
)
from holdfast.records.sampling import Sampling, response_format_of
from holdfast.records.step import VersionSpan
from holdfast.records.usage import Usage, count_of

Answer = TypeVar("Answer")


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


NULL = Raw(b"null")


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
    """What a chat API says. They differ in names and shapes, so that what cannot be read is not
    counted, and refuses nothing."""
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


def raw_or_none(found: Raw) -> Raw | None:
    """A field that is compared undecoded; None if it is null or missing."""
    return None if found == NULL else found


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


def openai_fields(attempt: SampleRequest) -> dict[str, object]:
    """The fields of OpenAI's requests; None: the request does not have it."""
    sampling = attempt.request.sampling
    return {
        "model": attempt.model,
        "max_tokens": attempt.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "stop": list(sampling.stop) or None,
        "seed": attempt.seed,
        "response_format": response_format_of(sampling),
        "thinking_token_budget": sampling.thinking_token_budget,
        **altering_fields(sampling),
    }


def altering_fields(sampling: Sampling) -> dict[str, object]:
    """What vLLM, SGLang and Fireworks have the same names for; None: it changes nothing."""
    return {
        "min_p": sampling.min_p or None,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "repetition_penalty": None
        if sampling.repetition_penalty == 1
        else sampling.repetition_penalty,
        "logit_bias": sampling.biases or None,
        "ignore_eos": sampling.ignore_eos or None,
    }


class ChoicesBody(Protocol):
    @property
    def choices(self) -> Sequence[object]: ...

    @property
    def usage(self) -> UsageBody | None: ...


Body = TypeVar("Body", bound=ChoicesBody)


class Choices(Generic[Body]):
    """Reads answers and events that have choices and a usage; `read` knows the field names."""

    def __init__(self, decoder: "msgspec.json.Decoder[Body]", read: Callable[[Body], Piece]):
        self._decoder = decoder
        self._read = read

    def whole(self, body: bytes) -> Piece:
        piece = self._read(decode(self._decoder, body))
        if piece.ids is None:
            raise InvalidAnswer("it has no token_ids (return_token_ids was asked for)")
        return check_ended(piece)

    def event(self, data: bytes) -> Piece:
        answer = decode(self._decoder, data)
        if not answer.choices:  # The last event of a stream holds the usage and nothing else.
            return add_usage(Piece(), answer.usage)
        return self._read(answer)

    def reader(self) -> Reader:
        return self.event
