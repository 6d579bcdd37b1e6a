"""vLLM's `/inference/v1/generate`, with tokens in and out, and the weights that sampled each span.

In a stream, only the last event has the version spans. They cover the whole stream.
"""

import msgspec
from msgspec import Raw, Struct

from holdfast.policy.dialects.completions import OWNERS
from holdfast.policy.dialects.dialect import (
    NULL,
    ChoicesDialect,
    Kind,
    Piece,
    UnknownEngine,
    UsageBody,
    VersionSpanBody,
    add_usage,
    altering_fields,
    check_token_ids,
    drop_none,
    only_choice,
    stream_options,
    version_spans,
)
from holdfast.policy.dialects.experts import npy_experts
from holdfast.policy.policy import Request


class _Token(Struct):
    token_id: int
    logprob: float


class _Logprobs(Struct):
    content: list[_Token] | None = None


class _Choice(Struct):
    finish_reason: str | None = None
    index: int = 0
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[VersionSpanBody] | None = None
    routed_experts: str | None = None


class _Answer(Struct):
    choices: list[_Choice]
    model: str | None = None
    usage: UsageBody | None = None
    prompt_token_ids: Raw = NULL


class Generate(ChoicesDialect):
    kind = Kind.VLLM_GENERATE
    path = "/inference/v1/generate"
    administers = "vLLM"
    no_route = (403, 404, 405)
    """vLLM answers 403 if the path is switched off."""
    decoder = msgspec.json.Decoder(_Answer)

    is_optional = True
    offers = "the version of the weights that sampled each token"

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        return engine.described.owner in OWNERS

    def body(self, request: Request) -> dict[str, object]:
        sampling = request.sampling
        params = drop_none(
            {
                "max_tokens": request.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or None,
                "logprobs": 0,
                "stop": list(sampling.stop) or None,
                # Without text, the engine would not notice a stop string.
                "detokenize": True if sampling.stop else None,
                "stop_token_ids": list(request.stop_token_ids) or None,
                "seed": request.seed,
                "structured_outputs": _structured_outputs(request),
                "thinking_token_budget": sampling.thinking_token_budget,
                "routed_experts_prompt_start": request.experts_from,
                **altering_fields(sampling),
            }
        )
        return {
            "model": request.model,
            "token_ids": request.prompt_json,
            "sampling_params": params,
            "return_token_ids": True,
            **stream_options(request),
        }

    def read(self, answer: _Answer) -> Piece:
        choice = only_choice(answer.choices)
        content = choice.logprobs.content if choice.logprobs else None
        ids = choice.token_ids
        if ids is not None and content is not None:
            check_token_ids([part.token_id for part in content], ids)
        piece = Piece(
            ids=ids,
            logprobs=None if content is None else [item.logprob for item in content],
            finish_reason=choice.finish_reason,
            model=answer.model,
            prompt=None if (prompt := answer.prompt_token_ids) == NULL else prompt,
            versions=version_spans(choice.weight_versions),
            experts=None if choice.routed_experts is None else npy_experts(choice.routed_experts),
        )
        return add_usage(piece, answer.usage)


def _structured_outputs(request: Request) -> dict[str, object] | None:
    if request.structure:
        return {"structural_tag": request.structure}
    if request.sampling.json is False:
        return None
    schema = request.sampling.schema
    return {"json": schema} if schema else {"json_object": True}
