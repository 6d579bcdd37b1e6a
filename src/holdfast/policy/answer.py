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
from holdfast.records.failure import redact
from holdfast.records.step import VersionSource, VersionSpan

_LOGPROB_SLACK = 1e-3
_FINISHED = ("stop", "length")


class _Logprobs(Struct):
    token_logprobs: list[float | None] | None = None


class _Choice(Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    model: str
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Answer)


def read(body: bytes, request: Request, *, model: str, tries: int, seconds: float) -> Completion:
    choice = _choice(body, request, model=model)
    ids = _ids(choice, request, body)
    logprobs = _logprobs(choice, len(ids), body)
    assert choice.finish_reason is not None, "checked in _choice"
    return Completion(
        ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        finish_reason=choice.finish_reason,
        # This wire does not say which weights sampled a token.
        versions=(VersionSpan("", 0, len(ids), VersionSource.UNKNOWN),),
        model=model,
        tries=tries,
        seconds=seconds,
    )


def _choice(body: bytes, request: Request, *, model: str) -> _Choice:
    try:
        answer = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        if b"NaN" in body or b"Infinity" in body:
            raise _bad("a logprob is not finite", body) from error
        raise _bad(f"the answer is malformed ({error})", body) from error
    if answer.model != model:
        raise _bad(f"model {answer.model!r} answered, not {model!r}", body)
    if len(answer.choices) != 1:
        raise _bad(f"{len(answer.choices)} choices, not 1", body)
    choice = answer.choices[0]
    if choice.finish_reason == "abort":
        raise EngineUnavailable("the engine aborted the generation (finish_reason 'abort')")
    if choice.finish_reason not in _FINISHED:
        raise _bad(f"finish_reason {choice.finish_reason!r}", body)
    return choice


def _ids(choice: _Choice, request: Request, body: bytes) -> "array[int]":
    if choice.token_ids is None:
        raise _bad("it has no token_ids (return_token_ids was asked for)", body)
    if not choice.token_ids:
        raise _bad("it has no tokens", body)
    if len(choice.token_ids) > request.sampling.max_tokens:
        raise _bad(f"{len(choice.token_ids)} tokens, more than max_tokens", body)
    try:
        ids = array("i", choice.token_ids)
        echoed = None if choice.prompt_token_ids is None else array("i", choice.prompt_token_ids)
    except OverflowError as error:
        raise _bad("a token id does not fit 32 bits", body) from error
    if min(ids) < 0:
        raise _bad("a token id is negative", body)
    if echoed is not None and echoed != request.prompt:
        raise _bad("it answers another prompt: prompt_token_ids are not those sent", body)
    return ids


def _logprobs(choice: _Choice, tokens: int, body: bytes) -> "array[float]":
    values = choice.logprobs.token_logprobs if choice.logprobs else None
    if values is None:
        raise _bad("it has no logprobs", body)
    if len(values) != tokens:
        raise _bad(f"{len(values)} logprobs for {tokens} tokens", body)
    try:
        logprobs = array("f", values)  # type: ignore[arg-type]  # a None raises, as it should
    except TypeError as error:
        raise _bad("a logprob is null", body) from error
    if not math.isfinite(sum(logprobs)):
        raise _bad("a logprob is not finite", body)
    if max(logprobs) > _LOGPROB_SLACK:
        raise _bad(f"a logprob is positive ({max(logprobs)})", body)
    return logprobs


def _bad(what: str, body: bytes) -> BadAnswer:
    evidence = redact(body[:300].decode("utf-8", "replace"))
    return BadAnswer(f"the engine's answer cannot be used: {what}. It begins: {evidence}")
