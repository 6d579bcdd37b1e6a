"""Fireworks' `/v1/completions`, plain and streamed.

The OpenAPI description of Fireworks' gateway documents every key that is written here, and the
finish reasons. It also says that only the first chunk has `prompt_token_ids`, and that `logprobs`
is `true` for the new shape and a number for the legacy one. The rest is inferred, without a
recording: errors look like vLLM's, the last chunk has the usage without a request for it, and an
aborted generation ends with "error". It is also inferred that `sampling_logprob`, the logprob of
the sampling distribution, equals `logprob`.
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.engine_api.requests import ResponseFormat, check_model, decode
from holdfast.engine_api.responses import text_logprobs, usage
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.json_output import required_schema
from holdfast.testing.fake_engine.request import FakeRequest, FakeWire, limits
from holdfast.testing.fake_engine.tokens import TEXT
from holdfast.testing.fake_engine.wires.vllm import scores


class FireworksRequest(Struct):
    """A request. Fields that only the real Fireworks understands are ignored."""

    model: str
    prompt: list[int] | str
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    logprobs: bool | int | None = None
    return_token_ids: bool | None = None
    raw_output: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = 1
    response_format: ResponseFormat | None = None
    stream: bool | None = None


class FireworksWire(FakeWire):
    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        body = decode(raw, FireworksRequest)
        check_model(body.model, self.options.model)
        job = FakeRequest(
            id=request_id,
            model=body.model,
            prompt=list(body.prompt.encode()) if isinstance(body.prompt, str) else body.prompt,
            limits=limits(body.max_tokens, body.stop, body.stop_token_ids),
            seed=body.seed,
            temperature=body.temperature,
            top_p=body.top_p,
            schema=required_schema(body.response_format, None),
            stream=bool(body.stream),
            logprobs=body.logprobs is not None and body.logprobs is not False,
            legacy_logprobs=not isinstance(body.logprobs, bool | None),
            token_ids=bool(body.return_token_ids),
            raw_output=bool(body.raw_output),
        )
        return self.check(job, n=body.n)

    def whole(self, job: FakeRequest, piece: FakePiece) -> object:
        tokens = usage(len(job.prompt), piece.sampled)
        details = {"prompt_tokens_details": {"cached_tokens": 0}}
        return {**_head(job), "choices": [_choice(job, piece)], "usage": {**tokens, **details}}

    def chunks(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]:
        chunk = {**_head(job), "choices": [_choice(job, piece)], "usage": None}
        if piece.finish_reason is not None:
            chunk["usage"] = usage(len(job.prompt), piece.start + piece.sampled)
        return [chunk]


def _head(job: FakeRequest) -> dict[str, object]:
    return {
        "id": f"cmpl-{job.id}",
        "object": "text_completion",
        "created": job.created,
        "model": job.model,
    }


def _choice(job: FakeRequest, piece: FakePiece) -> object:
    return {
        "index": 0,
        "text": piece.text,
        "logprobs": _logprobs(job, piece),
        "finish_reason": "error" if piece.finish_reason == "abort" else piece.finish_reason,
        "raw_output": _raw_output(job, piece) if job.raw_output else None,
        "prompt_token_ids": job.prompt if job.token_ids and piece.start == 0 else None,
        "token_ids": piece.ids if job.token_ids else None,
    }


def _raw_output(job: FakeRequest, piece: FakePiece) -> object:
    return {
        "prompt_fragments": job.prompt,
        "prompt_token_ids": job.prompt,
        "completion": piece.text,
        "completion_token_ids": None if job.hide_ids else piece.ids,
        "completion_logprobs": _logprobs(job, piece),
        "images": None,
        "grammar": None,
    }


def _logprobs(job: FakeRequest, piece: FakePiece) -> object:
    if not job.logprobs:
        return None
    if job.legacy_logprobs:
        ids = None if job.hide_ids else piece.scored
        return {**text_logprobs(scores(piece), piece.start), "token_ids": ids}
    # With a fault, there may be fewer logprobs than tokens.
    pairs = zip(piece.scored, piece.logprobs, strict=False)
    return {
        "content": [_token_logprob(job, *pair, piece.start + n) for n, pair in enumerate(pairs)]
    }


def _token_logprob(job: FakeRequest, token: int, logprob: float, offset: int) -> object:
    scored: dict[str, object] = {
        "token": TEXT[token],
        "logprob": logprob,
        "sampling_logprob": logprob,
        "bytes": list(TEXT[token].encode()),
        "top_logprobs": [],
        "token_id": token,
        "text_offset": offset,
    }
    if job.hide_ids:
        del scored["token_id"]
    return scored
