"""`/v1/completions` with token-id prompts, as vLLM and the embedded engine speak it."""

import msgspec
from msgspec import Struct

from holdfast.policy.dialects.dialect import (
    NULL,
    ChoicesDialect,
    CompletionChoice,
    InvalidAnswer,
    Kind,
    Piece,
    UnknownEngine,
    UsageBody,
    VersionSpanBody,
    drop_none,
    only_choice,
    openai_fields,
    usage_of,
    version_spans,
)
from holdfast.policy.dialects.experts import npy_experts
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported


class _Logprobs(Struct):
    token_logprobs: list[float] | None = None
    """A null in this list fails to decode, and the error names its position."""


class _Choice(CompletionChoice):
    logprobs: _Logprobs | None = None
    weight_versions: list[VersionSpanBody] | None = None
    """Sent only by the embedded engine. vLLM sends versions only on its own path."""
    routed_experts: str | None = None


class _Answer(Struct):
    model: str
    choices: list[_Choice]
    usage: UsageBody | None = None


OWNERS = ("vllm", "holdfast")
"""The names that vLLM and the embedded engine give themselves."""


class Completions(ChoicesDialect):
    kind = Kind.VLLM
    path = "/v1/completions"
    administers = "vLLM"
    decoder = msgspec.json.Decoder(_Answer)

    offers = "token ids and logprobs: it is good for evaluation only"

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        """Returns True also for an unknown engine, because a trial will show what it speaks."""
        return engine.described.owner not in ("sglang", "fireworks")

    def check(self, request: Request) -> None:
        if request.experts_from is not None and request.partial is not None:
            raise Unsupported(
                "routed_experts",
                "vLLM streams no routed experts on /v1/completions: start it with "
                "--enable-scale-out, or sample replies in one piece (--partial-tokens 0)",
            )

    def body(self, request: Request) -> dict[str, object]:
        sampling = request.sampling
        structure = request.structure
        return drop_none(
            {
                **openai_fields(request),
                "prompt": request.prompt_json,
                # If a request omits these, vLLM takes them from the model's generation_config.json,
                # and samples from another distribution.
                "top_k": sampling.top_k or -1,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "logprobs": 0,
                "return_token_ids": True,
                "routed_experts_prompt_start": request.experts_from,
                "stop_token_ids": list(request.stop_token_ids) or None,
                "structured_outputs": {"structural_tag": structure} if structure else None,
            }
        )

    def read(self, answer: _Answer) -> Piece:
        choice, usage = only_choice(answer.choices), answer.usage
        ids, prompt, versions = choice.token_ids, choice.prompt_token_ids, choice.weight_versions
        if ids is None and choice.text:
            raise InvalidAnswer("it has text but no token_ids (return_token_ids was asked for)")
        # Positional arguments and few calls, because this runs for each token of each stream.
        return Piece(
            ids,
            choice.logprobs.token_logprobs if choice.logprobs else None,
            choice.finish_reason,
            answer.model,
            None if prompt == NULL else prompt,
            None if versions is None else version_spans(versions),
            None,
            None if usage is None else usage.completion_tokens,
            None if usage is None else usage.prompt_tokens,
            None if usage is None else usage_of(usage),
            None if choice.routed_experts is None else npy_experts(choice.routed_experts),
        )
