"""Request bodies of vLLM's sampling endpoints, and the checks that every engine makes.

A field that is null counts as absent. `decode` ignores fields of vLLM that these types lack. An
engine that must not ignore such fields checks them itself.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from holdfast.engine_api import errors

T = TypeVar("T")
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class JsonSchema(Struct):
    schema: dict[str, object] | None = None
    name: str = ""
    strict: bool | None = None


class ResponseFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, frozen=True):
    json: dict[str, object] | str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class EngineStreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """The parameters of sampling that all endpoints share."""

    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class OpenAIRequest(SamplingFields, kw_only=True):
    """The fields that `/v1/completions` and `/v1/chat/completions` share."""

    model: str
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: EngineStreamOptions | None = None


class CompletionsRequest(OpenAIRequest, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None


class ChatRequest(OpenAIRequest, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Any]
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class GenerateSamplingParams(SamplingFields, kw_only=True):
    logprobs: int | None = None


class GenerateRequest(Struct, kw_only=True):
    """`POST /inference/v1/generate`: tokens in, tokens out."""

    token_ids: list[int]
    sampling_params: GenerateSamplingParams | None = None
    model: str | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: EngineStreamOptions | None = None


def ends_with_usage(body: OpenAIRequest | GenerateRequest) -> bool:
    """Returns whether the response is a stream with the usage in its last chunk."""
    return bool(body.stream and body.stream_options and body.stream_options.include_usage)


def decode(raw: bytes, kind: type[T]) -> T:
    """Decodes a body. Raises `EngineRequestRejected`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise errors.undecodable(error) from error


def check_model(requested: str | None, served: str) -> None:
    if requested is not None and requested != served:
        raise errors.unknown_model(requested, served)


def check_sampling(*, temperature: float, top_p: float, max_tokens: int | None) -> None:
    if temperature < 0:
        raise errors.invalid_parameter("temperature", "non-negative", temperature)
    if not 0 < top_p <= 1:
        raise errors.invalid_parameter("top_p", "in (0, 1]", top_p)
    if max_tokens is not None and max_tokens < 1:
        raise errors.invalid_parameter("max_tokens", "at least 1", max_tokens)


def check_altering(params: SamplingFields) -> None:
    """Checks the bounds of parameters that change the distribution. Null is allowed."""
    top_k, min_p, factor = params.top_k, params.min_p, params.repetition_penalty
    if top_k is not None and top_k < -1:
        raise errors.invalid_parameter("top_k", "0 or -1 (all), or at least 1", top_k)
    if min_p is not None and not 0 <= min_p <= 1:
        raise errors.invalid_parameter("min_p", "in [0, 1]", min_p)
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if value is not None and not -2 <= value <= 2:
            raise errors.invalid_parameter(name, "in [-2, 2]", value)
    if factor is not None and not factor > 0:
        raise errors.invalid_parameter("repetition_penalty", "greater than zero", factor)
    for token in params.logit_bias or ():
        if not (token.isascii() and token.isdecimal()):
            raise errors.invalid_parameter("logit_bias", "an object of token ids", token)


def check_prompt(prompt: list[int], *, max_tokens: int | None, max_model_len: int) -> None:
    """Checks that a prompt has tokens, and that prompt and reply together fit into the context."""
    if not prompt:
        raise errors.empty_prompt()
    if len(prompt) + (max_tokens or 1) > max_model_len:
        raise errors.too_long(max_model_len, len(prompt), max_tokens or 1)
