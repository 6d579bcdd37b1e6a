"""vLLM's `/v1/completions`, plain and streamed, as recorded from vLLM 0.32.

Answers have the recorded keys in the recorded order. Its logprobs name tokens by their text, so
that they cannot contradict its ids.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.testing.fake_engine import errors as refusals
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.json_output import ResponseFormat
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import (
    FakeRequest,
    FakeStreamOptions,
    checked,
    decoded,
    limits,
    only_one,
)
from holdfast.testing.fake_engine.structured import StructuredOutputs
from holdfast.testing.fake_engine.tokens import TEXT

FINGERPRINT = "holdfast-fake"


class CompletionsRequest(Struct):
    """A request. What vLLM understands beyond this is ignored."""

    model: str
    prompt: list[int] | str
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    logprobs: int | None = None
    return_token_ids: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = 1
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: FakeStreamOptions | None = None


def _schema(body: CompletionsRequest) -> dict[str, object] | None:
    if body.structured_outputs is not None:
        return body.structured_outputs.wanted()
    return body.response_format.wanted() if body.response_format else None


class CompletionsLogprobs(Struct):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class CompletionsChoice(Struct):
    index: int
    text: str
    logprobs: CompletionsLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: None
    prompt_token_ids: list[int] | None
    routed_experts: None = None


class CompletionsUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: None = None
    completion_tokens_details: None = None


class CompletionsAnswer(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionsChoice]
    service_tier: None
    system_fingerprint: str
    usage: CompletionsUsage
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class CompletionsWire:
    def __init__(self, options: FakeOptions):
        self._options = options
        self._decoder = msgspec.json.Decoder(CompletionsRequest)

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        body = decoded(self._decoder, raw)
        if body.model != self._options.model:
            raise refusals.unknown_model(body.model, self._options.model)
        only_one(body.n)
        prompt = list(body.prompt.encode()) if isinstance(body.prompt, str) else body.prompt
        job = FakeRequest(
            id=request_id,
            model=body.model,
            prompt=prompt,
            limits=limits(body.max_tokens, body.stop, body.stop_token_ids),
            seed=body.seed,
            temperature=body.temperature,
            top_p=body.top_p,
            schema=_schema(body),
            stream=bool(body.stream),
            usage=body.stream_options is not None and body.stream_options.include_usage,
            logprobs=body.logprobs is not None,
            token_ids=bool(body.return_token_ids),
        )
        return checked(job, max_model_len=self._options.max_model_len)

    def request_id(self, raw: bytes) -> str | None:
        return None

    def whole(self, job: FakeRequest, piece: FakePiece) -> CompletionsAnswer:
        choice = CompletionsChoice(
            index=0,
            text=piece.text,
            logprobs=legacy_logprobs(piece) if job.logprobs else None,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop,
            token_ids=piece.scored if job.token_ids else None,
            prompt_logprobs=None,
            prompt_token_ids=job.prompt if job.token_ids else None,
        )
        return CompletionsAnswer(
            id=f"cmpl-{job.id}",
            object="text_completion",
            created=job.created,
            model=job.model,
            choices=[choice],
            service_tier=None,
            system_fingerprint=FINGERPRINT,
            usage=whole_usage(job, piece),
        )

    def events(self) -> "_Events":
        return _Events()

    def error(self, refusal: refusals.FakeRequestRejected) -> object:
        return {"error": refusal.error}


class _Events:
    """The first chunk with the prompt's ids, one for each piece, and the usage at last."""

    def opening(self, job: FakeRequest) -> Sequence[object]:
        return ()

    def piece(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]:
        choice: dict[str, object] = {
            "index": 0,
            "text": piece.text,
            "logprobs": legacy_logprobs(piece) if job.logprobs else None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop,
            "prompt_token_ids": job.prompt if job.token_ids and piece.start == 0 else None,
            "token_ids": piece.scored if job.token_ids else None,
        }
        chunk = {**_head(job), "choices": [choice]}
        if piece.finish_reason is not None and not job.usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return [chunk]

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[object]:
        if not job.usage:
            return ()
        usage = usage_of(job, tokens)
        return [{**_head(job), "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}]


def whole_usage(job: FakeRequest, piece: FakePiece) -> CompletionsUsage:
    prompt = len(job.prompt)
    return CompletionsUsage(prompt, prompt + piece.sampled, piece.sampled)


def usage_of(job: FakeRequest, tokens: int) -> dict[str, int]:
    prompt = len(job.prompt)
    return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}


def _head(job: FakeRequest) -> dict[str, object]:
    return {
        "id": f"cmpl-{job.id}",
        "object": "text_completion",
        "created": job.created,
        "model": job.model,
    }


def legacy_logprobs(piece: FakePiece) -> CompletionsLogprobs:
    tokens = [TEXT[token] for token in piece.scored]
    return CompletionsLogprobs(
        text_offset=list(range(piece.start, piece.start + len(tokens))),
        token_logprobs=piece.logprobs,
        tokens=tokens,
        # Whatever number is asked for, only the sampled token is listed. Where the engine lies,
        # there may be fewer logprobs than tokens.
        top_logprobs=[{text: value} for text, value in zip(tokens, piece.logprobs, strict=False)],
    )
