"""An engine's answer to `/v1/completions`, parsed and validated.

Only what is needed is decoded. Whatever is missing, of the wrong length or not finite is an error
with the evidence in it: nothing is ever padded.
"""

import math
from array import array

import msgspec
from msgspec import Struct

from holdfast.policy.policy import Completion, Request
from holdfast.records.errors import BadAnswer, EngineUnavailable
from holdfast.records.redaction import redact
from holdfast.records.step import VersionSource, VersionSpan
from holdfast.records.tokens import TYPE_IDS, TYPE_LOGPROBS, pack_ids, pack_logprobs

UNREADABLE = (ValueError, RecursionError)
"""What msgspec raises for JSON that it cannot read: its own errors, bad UTF-8, deep nesting."""
_LOGPROB_SLACK = 1e-3
_FINISHED = ("stop", "length")
_EVIDENCE = 300


class _Logprobs(Struct):
    token_logprobs: list[float] | None = None
    """A null among them fails to decode, with its position in the message."""


class _Choice(Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    model: str
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Answer)


class _Unusable(Exception):
    """What is wrong with the answer; the evidence is added where it leaves this module."""


def read(
    body: bytes,
    request: Request,
    *,
    model: str,
    tries: int,
    seconds: float,
) -> Completion:
    """Raises `BadAnswer`, or `EngineUnavailable` for an aborted generation."""
    try:
        choice = _choice(body, model=model)
        ids = _ids(choice, request)
        logprobs = _logprobs(choice, len(ids))
    except _Unusable as error:
        evidence = redact(body[:_EVIDENCE].decode("utf-8", "replace"))
        raise BadAnswer(
            f"the engine's answer cannot be used: {error}. It begins: {evidence}"
        ) from error
    assert choice.finish_reason is not None, "checked in _choice"
    return Completion(
        ids=pack_ids(ids),
        logprobs=pack_logprobs(logprobs),
        finish_reason=choice.finish_reason,
        # This wire does not say which weights sampled a token.
        versions=(VersionSpan("", 0, len(ids), VersionSource.UNKNOWN),),
        model=model,
        tries=tries,
        seconds=seconds,
    )


def _choice(body: bytes, *, model: str) -> _Choice:
    answer = _decoded(body)
    if answer.model != model:
        raise _Unusable(f"model {answer.model!r} answered, not {model!r}")
    if len(answer.choices) != 1:
        raise _Unusable(f"{len(answer.choices)} choices, not 1")
    choice = answer.choices[0]
    if choice.finish_reason == "abort":
        raise EngineUnavailable("the engine aborted the generation (finish_reason 'abort')")
    if choice.finish_reason not in _FINISHED:
        raise _Unusable(f"finish_reason {choice.finish_reason!r}")
    return choice


def _decoded(body: bytes) -> _Answer:
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        # JSON has no NaN, but Python's json writes it, and engines use that.
        if b"NaN" in body or b"Infinity" in body:
            raise _Unusable("a logprob is not finite") from error
        raise _Unusable(f"the answer is malformed ({error})") from error


def _ids(choice: _Choice, request: Request) -> "array[int]":
    if choice.token_ids is None:
        raise _Unusable("it has no token_ids (return_token_ids was asked for)")
    if not choice.token_ids:
        raise _Unusable("it has no tokens")
    if len(choice.token_ids) > request.sampling.max_tokens:
        raise _Unusable(f"{len(choice.token_ids)} tokens, more than max_tokens")
    ids = _packed(choice.token_ids)
    if min(ids) < 0:
        raise _Unusable("a token id is negative")
    if choice.prompt_token_ids is not None and _packed(choice.prompt_token_ids) != request.prompt:
        raise _Unusable("it answers another prompt: prompt_token_ids are not those sent")
    return ids


def _packed(ids: list[int]) -> "array[int]":
    try:
        return array(TYPE_IDS, ids)
    except OverflowError as error:
        raise _Unusable("a token id does not fit 32 bits") from error


def _logprobs(choice: _Choice, tokens: int) -> "array[float]":
    values = choice.logprobs.token_logprobs if choice.logprobs else None
    if values is None:
        raise _Unusable("it has no logprobs")
    if len(values) != tokens:
        raise _Unusable(f"{len(values)} logprobs for {tokens} tokens")
    logprobs = array(TYPE_LOGPROBS, values)
    if not math.isfinite(sum(logprobs)):
        raise _Unusable("a logprob is not finite")
    if max(logprobs) > _LOGPROB_SLACK:
        raise _Unusable(f"a logprob is positive ({max(logprobs)})")
    return logprobs
