"""vLLM's `/inference/v1/generate`: tokens in, tokens out, with the weights that sampled each span.

Plain answers as recorded from vLLM 0.32; streams as its source builds them. A stream tells the
versions in its last chunk alone, for the whole output: one that is cut has told none.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.testing.fake_engine import errors as refusals
from holdfast.testing.fake_engine.generation import FakePiece, FakeSpan
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
from holdfast.testing.fake_engine.wires.completions import CompletionsUsage, usage_of, whole_usage


class GenerateSamplingParams(Struct, frozen=True):
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = 1
    structured_outputs: StructuredOutputs | None = None


class GenerateRequest(Struct):
    """A request. What vLLM understands beyond this is ignored."""

    token_ids: list[int]
    sampling_params: GenerateSamplingParams
    model: str | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: FakeStreamOptions | None = None


class GenerateCandidate(Struct):
    token_id: int
    logprob: float
    rank: int | None


class GenerateScored(Struct):
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[GenerateCandidate]


class GenerateLogprobs(Struct):
    content: list[GenerateScored]


class GenerateChoice(Struct):
    index: int
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None
    sampling_mask: None
    weight_versions: list[FakeSpan] | None
    logprobs: GenerateLogprobs | None


class GenerateAnswer(Struct):
    request_id: str
    model: str
    created: int
    usage: CompletionsUsage
    prompt_logprobs: None
    prompt_token_id_logprobs: None
    prompt_token_ids: list[int] | None
    mm_placeholders: None
    metrics: None
    kv_transfer_params: None
    ec_transfer_params: None
    output_mode: str
    choices: list[GenerateChoice]


class GenerateWire:
    """`enabled`: whether the server was started with `--enable-scale-out`."""

    def __init__(self, options: FakeOptions, *, enabled: bool):
        self._options = options
        self._enabled = enabled
        self._decoder = msgspec.json.Decoder(GenerateRequest)

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        if not self._enabled:
            raise refusals.scale_out_disabled()
        body = decoded(self._decoder, raw)
        if body.model not in (None, self._options.model):
            raise refusals.unknown_model(str(body.model), self._options.model)
        params = body.sampling_params
        only_one(params.n)
        job = FakeRequest(
            id=request_id,
            model=self._options.model,
            prompt=body.token_ids,
            limits=limits(params.max_tokens, params.stop, params.stop_token_ids),
            seed=params.seed,
            temperature=params.temperature,
            top_p=params.top_p,
            schema=params.structured_outputs.wanted() if params.structured_outputs else None,
            stream=bool(body.stream),
            usage=body.stream_options is not None and body.stream_options.include_usage,
            logprobs=params.logprobs is not None,
            prompt_ids=bool(body.return_token_ids),
        )
        return checked(job, max_model_len=self._options.max_model_len)

    def request_id(self, raw: bytes) -> str | None:
        return None

    def whole(self, job: FakeRequest, piece: FakePiece) -> GenerateAnswer:
        return GenerateAnswer(
            request_id=f"generate-tokens-{job.id}",
            model=job.model,
            created=job.created,
            usage=whole_usage(job, piece),
            prompt_logprobs=None,
            prompt_token_id_logprobs=None,
            prompt_token_ids=job.prompt if job.prompt_ids else None,
            mm_placeholders=None,
            metrics=None,
            kv_transfer_params=None,
            ec_transfer_params=None,
            output_mode="tokens",
            choices=[_choice(job, piece)],
        )

    def events(self) -> "_Events":
        return _Events()

    def error(self, refusal: refusals.FakeRequestRejected) -> object:
        return {"error": refusal.error}


class _Events:
    def opening(self, job: FakeRequest) -> Sequence[object]:
        return ()

    def piece(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]:
        chunk: dict[str, object] = {"request_id": f"generate-tokens-{job.id}", "usage": None}
        if job.prompt_ids and piece.start == 0:
            chunk["prompt_token_ids"] = job.prompt
        return [{**chunk, "output_mode": "tokens", "choices": [_choice(job, piece)]}]

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[object]:
        if not job.usage:
            return ()
        head = {"request_id": f"generate-tokens-{job.id}", "usage": usage_of(job, tokens)}
        return [{**head, "output_mode": "tokens", "choices": []}]


def _choice(job: FakeRequest, piece: FakePiece) -> GenerateChoice:
    return GenerateChoice(
        index=0,
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop,
        token_ids=piece.ids if job.token_ids else None,
        routed_experts=None,
        sampling_mask=None,
        weight_versions=piece.versions if piece.finish_reason is not None else None,
        logprobs=_logprobs(piece) if job.logprobs else None,
    )


def _logprobs(piece: FakePiece) -> GenerateLogprobs:
    return GenerateLogprobs(
        [
            GenerateScored(token, logprob, 1, [GenerateCandidate(token, logprob, 1)])
            # Where the engine lies, there may be fewer logprobs than tokens.
            for token, logprob in zip(piece.scored, piece.logprobs, strict=False)
        ]
    )
