"""SGLang's `/generate`, plain and streamed.

The formats follow SGLang's sources (`io_struct`, `tokenizer_manager`, `http_server`), because there
is no recording of a real server. Each event of a stream repeats everything before it, unless the
server was started with `--incremental-streaming-output`. Every event has the versions of the spans;
older servers have only the newest version. Errors have vLLM's keys in addition to the message; the
real SGLang sends only the message.
"""

import time
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.json_output import ANY, parse_schema, parse_structural_tag
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import FakeRequest, FakeWire, limits
from holdfast.testing.fake_engine.tokens import END, TEXT
from holdfast.testing.fake_engine.wires.experts import flat_text


class SglangSamplingParams(Struct, frozen=True):
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = 1
    json_schema: str | None = None
    structural_tag: str | None = None


class SglangRequest(Struct):
    """A request. Fields that only the real SGLang understands are ignored."""

    input_ids: list[int] | None = None
    text: str | None = None
    sampling_params: SglangSamplingParams = SglangSamplingParams()
    return_logprob: bool = False
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    rid: str | None = None
    lora_path: str | None = None
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0


def _schema(params: SglangSamplingParams) -> dict[str, object] | None:
    if params.structural_tag is not None:
        return parse_structural_tag(params.structural_tag)
    if params.json_schema is None:
        return None
    schema = parse_schema(params.json_schema)
    return ANY if schema == {"type": "object"} else schema


class SGLangWire(FakeWire):
    def __init__(self, options: FakeOptions, adapters: Collection[str] = ()):
        super().__init__(options, adapters)
        self._so_far: FakePiece | None = None

    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        body = decode(raw, SglangRequest)
        if (body.input_ids is None) == (body.text is None):
            raise EngineRequestRejected(400, "Either text or input_ids should be provided.")
        params = body.sampling_params
        job = FakeRequest(
            id=body.rid or request_id,
            model=self.served(body.lora_path),
            prompt=list((body.text or "").encode()) if body.input_ids is None else body.input_ids,
            limits=limits(params.max_new_tokens, params.stop, params.stop_token_ids),
            seed=params.sampling_seed,
            temperature=params.temperature,
            top_p=params.top_p,
            schema=_schema(params),
            stream=body.stream,
            logprobs=body.return_logprob,
            logprob_texts=body.return_text_in_logprobs,
            prompt_ids=body.return_prompt_token_ids,
            experts_from=body.routed_experts_start_len if body.return_routed_experts else None,
        )
        return self.check(job, n=params.n)

    def request_id(self, raw: bytes) -> str | None:
        try:
            return decode(raw, SglangRequest).rid
        except EngineRequestRejected:
            # `read` raises, with the reason.
            return None

    def whole(self, job: FakeRequest, piece: FakePiece) -> object:
        return self._output(job, piece, tokens=piece.sampled)

    def for_stream(self) -> "SGLangWire":
        return SGLangWire(self.options, self.adapters)

    def chunks(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]:
        tokens = piece.start + piece.sampled
        if self.options.incremental_stream:
            return [self._output(job, piece, tokens=tokens)]
        self._so_far = piece if self._so_far is None else _both(self._so_far, piece)
        return [self._output(job, self._so_far, tokens=tokens)]

    def _output(self, job: FakeRequest, piece: FakePiece, *, tokens: int) -> object:
        output = _output(job, piece, tokens=tokens)
        if piece.finish_reason is not None:
            experts = flat_text(self.options, job, tokens=tokens)
            output["meta_info"] |= {"routed_experts": experts} if experts else {}
        return output

    def error(self, error: EngineRequestRejected) -> object:
        return {"error": {"message": str(error)}}


def _both(before: FakePiece, piece: FakePiece) -> FakePiece:
    return replace(
        piece,
        start=0,
        ids=before.ids + piece.ids,
        scored=before.scored + piece.scored,
        logprobs=before.logprobs + piece.logprobs,
        text=before.text + piece.text,
    )


def _output(job: FakeRequest, piece: FakePiece, *, tokens: int) -> dict[str, Any]:
    meta: dict[str, object] = {
        "id": job.id,
        "finish_reason": _finish_reason(piece, tokens),
        "prompt_tokens": len(job.prompt),
        "weight_version": piece.versions[-1].version if piece.versions else job.version,
        "num_retractions": 0,
    }
    if job.logprobs:
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = _logprobs(job, piece)
        meta["output_token_logprobs_length"] = tokens
    meta |= {"reasoning_tokens": 0, "completion_tokens": tokens, "cached_tokens": 0}
    meta["weight_versions"] = piece.versions
    if piece.finish_reason is not None:
        meta["e2e_latency"] = max(0.0, time.time() - job.created)
    output: dict[str, object] = {"text": piece.text}
    if job.token_ids:
        output["output_ids"] = piece.ids
    output["meta_info"] = meta
    if job.prompt_ids:
        output["prompt_token_ids"] = job.prompt
    return output


def _finish_reason(piece: FakePiece, tokens: int) -> object:
    if piece.finish_reason is None:
        return None
    if piece.finish_reason == "stop":
        return {"type": "stop", "matched": END if piece.stop is None else piece.stop}
    if piece.finish_reason == "length":
        return {"type": "length", "length": tokens}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def _logprobs(job: FakeRequest, piece: FakePiece) -> list[tuple[float, int, str | None]]:
    return [
        (logprob, token, TEXT[token] if job.logprob_texts else None)
        # With a fault, there may be fewer logprobs than tokens.
        for token, logprob in zip(piece.scored, piece.logprobs, strict=False)
    ]
