"""SGLang's `/generate` with `input_ids`.

The events of its stream either repeat all tokens or have only the new ones, depending on how the
server is started. The reader takes both. Its answers do not name the model.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from holdfast.policy.dialects.completions import OWNERS
from holdfast.policy.dialects.dialect import (
    Dialect,
    EngineError,
    InvalidAnswer,
    Kind,
    Piece,
    Reader,
    Seeds,
    UnknownEngine,
    VersionSpanBody,
    altering_fields,
    check_ended,
    check_token_ids,
    decode,
    drop_none,
    fields_of,
    version_spans,
)
from holdfast.policy.dialects.experts import flat_experts
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported
from holdfast.records.step import VersionSpan
from holdfast.records.usage import Usage, count_of

_Logprob = tuple[float, int, str | None]
Item = TypeVar("Item")


class _Finish(Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


class _Meta(Struct):
    finish_reason: _Finish | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    output_token_logprobs: list[_Logprob] | None = None
    weight_version: str | None = None
    weight_versions: list[VersionSpanBody] | None = None
    """The versions of all tokens so far. Older servers name only the current weights."""
    routed_experts: str | None = None


class _Answer(Struct):
    meta_info: _Meta
    output_ids: list[int] | None = None


_decoder = msgspec.json.Decoder(_Answer)
_ANY_OBJECT = '{"type": "object"}'


class SGLang(Dialect):
    kind = Kind.SGLANG
    path = "/generate"
    administers = "SGLang"
    ends_reasoning = False
    version_path = "/get_model_info"

    offers = "token ids and logprobs: it is good for evaluation only"

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        if (owner := engine.described.owner) in (*OWNERS, "sglang"):
            return owner == "sglang"
        return "model_path" in fields_of(await engine.ask(self.version_path))

    async def describe(self, engine: UnknownEngine) -> None:
        """Asks for the longest context and the effect of a seed. SGLang takes seeds only with
        deterministic inference, and then by position."""
        fields, described = fields_of(await engine.ask("/get_server_info")), engine.described
        if described.max_model_len is None:
            lengths = (fields.get(name) for name in ("context_length", "max_total_num_tokens"))
            known = (length for length in lengths if isinstance(length, int) and length > 0)
            described.max_model_len = next(known, None)
        is_deterministic = fields.get("enable_deterministic_inference")
        if described.seeds is None and isinstance(is_deterministic, bool):
            engine.seeds = Seeds.POSITION if is_deterministic else Seeds.NONE

    def check(self, request: Request) -> None:
        if request.sampling.ignore_eos and request.sampling.stop_token_ids:
            raise Unsupported(
                "stop_token_ids",
                "SGLang ends no reply at token ids with ignore_eos: give one of both",
            )

    def body(self, request: Request) -> dict[str, object]:
        sampling = request.sampling
        # SGLang takes only schemas, so "any object" is a schema, too.
        schema = _ANY_OBJECT if sampling.json is True else sampling.json
        params = drop_none(
            {
                "max_new_tokens": request.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or None,
                "stop": list(sampling.stop) or None,
                "stop_token_ids": list(request.stop_token_ids) or None,
                "sampling_seed": request.seed,
                "json_schema": schema or None,
                "structural_tag": request.structure or None,
                **altering_fields(sampling),
            }
        )
        return {
            "input_ids": request.prompt_json,
            "sampling_params": params,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": request.stream,
            **({"lora_path": request.adapter} if request.adapter else {}),
            **_wanted_experts(request),
        }

    def whole(self, body: bytes) -> Piece:
        return check_ended(_reader()(body))

    def reader(self) -> Reader:
        return _reader()


def _wanted_experts(request: Request) -> dict[str, object]:
    if request.experts_from is None:
        return {}
    return {"return_routed_experts": True, "routed_experts_start_len": request.experts_from}


def _reader() -> Callable[[bytes], Piece]:
    taken: list[int] = []
    versions: tuple[VersionSpan, ...] = ()

    def event(data: bytes) -> Piece:
        nonlocal versions
        answer = decode(_decoder, data)
        piece = _read(answer, taken)
        taken.extend(piece.ids or ())
        if answer.meta_info.weight_versions is not None:
            piece.versions = version_spans(answer.meta_info.weight_versions)
        elif (version := answer.meta_info.weight_version) and piece.ids:
            versions = _extend(versions, version, len(taken))
            piece.versions = versions
        return piece

    return event


def _read(answer: _Answer, taken: list[int]) -> Piece:
    """Returns the tokens of an answer that are not in `taken`, the tokens received before."""
    meta = answer.meta_info
    finish = meta.finish_reason
    if finish is not None and finish.type == "abort" and (finish.status_code or 0) >= 400:
        raise EngineError(finish.message or "aborted", finish.status_code or 500)
    if answer.output_ids is None:
        raise InvalidAnswer("it has no output_ids")
    if meta.output_token_logprobs is None:
        raise InvalidAnswer("it has no output_token_logprobs (return_logprob was asked for)")
    ids, logprobs = answer.output_ids, meta.output_token_logprobs
    total = _total(meta, ids, taken)
    if len(ids) == total and ids[: len(taken)] != taken:
        raise InvalidAnswer("it repeats other output_ids than it sent before")
    ids, logprobs = _new_items(ids, len(taken), total), _new_items(logprobs, len(taken), total)
    check_token_ids([logprob[1] for logprob in logprobs], ids)
    return Piece(
        ids=ids,
        logprobs=[item[0] for item in logprobs],
        finish_reason=finish.type if finish else None,
        total=meta.completion_tokens,
        prompt_tokens=meta.prompt_tokens,
        usage=_usage(meta) if finish else None,
        experts=flat_experts(meta.routed_experts) if finish and meta.routed_experts else None,
    )


def _usage(meta: _Meta) -> Usage | None:
    if meta.prompt_tokens is None or meta.completion_tokens is None:
        return None
    return Usage(
        meta.prompt_tokens,
        meta.completion_tokens,
        count_of(meta.cached_tokens) or 0,
        count_of(meta.reasoning_tokens) or 0,
    )


def _total(meta: _Meta, ids: list[int], taken: list[int]) -> int:
    if meta.completion_tokens is None:
        if taken:
            raise InvalidAnswer(
                "without completion_tokens nobody knows which of its tokens are new"
            )
        return len(ids)
    if len(ids) not in (meta.completion_tokens, meta.completion_tokens - len(taken)):
        count = f"{meta.completion_tokens} tokens by its own count"
        raise InvalidAnswer(f"{len(ids)} output_ids after {len(taken)}, {count}")
    return meta.completion_tokens


def _new_items(items: list[Item], seen: int, total: int) -> list[Item]:
    """Returns the new items of an event. `items` are either all items or only the new ones; `total`
    shows which. `seen` is the number of earlier items."""
    return items[seen:] if len(items) == total else items


def _extend(
    version_spans: tuple[VersionSpan, ...], version: str, end: int
) -> tuple[VersionSpan, ...]:
    """Adds the event's new tokens to the spans. Each event names the current weights, which sampled
    its new tokens."""
    if version_spans and version_spans[-1].version == version:
        return (*version_spans[:-1], VersionSpan(version, version_spans[-1].start, end))
    return (
        *version_spans,
        VersionSpan(version, version_spans[-1].end if version_spans else 0, end),
    )
