"""Decodes and checks a request's body, turns its prompts into ids, and makes its generations.

No parameter is ignored in silence. A parameter that this engine lacks is rejected, unless its value
changes nothing or it concerns only the client's bookkeeping (`user`, `metadata`).
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler import sampler
from holdfast.embedded.scheduler.detokenizer import GenerationText
from holdfast.embedded.scheduler.generation import Generation, Sink, TokenSampling
from holdfast.engine_api import errors
from holdfast.engine_api.requests import (
    CompletionsRequest,
    EngineStreamOptions,
    GenerateRequest,
    GenerateSamplingParams,
    OpenAIRequest,
    SamplingFields,
    check_altering,
    check_model,
    check_prompt,
    check_sampling,
    ends_with_usage,
)

_DEFAULT_MAX_TOKENS = 16
_MAX_CHOICES = 1024
MAX_LOGPROBS = 20
_MIN_TEMPERATURE = 1e-200
"""The least temperature. Logits divided by less are no longer finite numbers."""
_IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "request_id", "priority", "cache_salt",
     "safety_identifier", "prompt_cache_key", "spaces_between_special_tokens", "stream_interval",
     "output_kind", "skip_clone")
)  # fmt: skip
_UNSUPPORTED = frozenset(
    ("response_format", "structured_outputs", "reasoning_effort", "thinking_token_budget")
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "detokenize": (True,),
    "parallel_tool_calls": (True,),
    "include_reasoning": (True,),
    "suffix": ("",),
    "bad_words": ([],),
    "flat_logprobs": (False,),
    "output_mode": ("tokens",),
    "modalities": (["text"],),
}
_NESTED: dict[str, type[Struct]] = {
    "stream_options": EngineStreamOptions,
    "sampling_params": GenerateSamplingParams,
}
T = TypeVar("T", bound=Struct)


class ParsedRequest(Struct, kw_only=True):
    """A client's request after all checks."""

    prompts: list[list[int]]
    n: int
    sampling: TokenSampling
    max_tokens: int | None
    """The most tokens to sample. None means as many as fit."""
    stop: tuple[str, ...]
    stream: bool
    usage_chunk: bool
    """Whether a stream ends with a chunk that contains the usage."""
    token_ids: bool
    prompt_ids: bool
    skip_special_tokens: bool
    include_stop: bool
    text: bool = True
    tools: bool = False
    """Whether to look for tool calls in the text."""

    def generations(self, model: LoadedModel, sinks: Sequence[Sink]) -> list[Generation]:
        """Returns n generations for each prompt, in order. `sinks` has one sink for each
        generation."""
        made: list[Generation] = []
        for prompt in self.prompts:
            limit = self.max_tokens or model.max_length - len(prompt)
            for choice in range(self.n):
                seed = sampler.derive_seed(self.sampling.seed, choice)
                made.append(
                    Generation(
                        prompt,
                        replace(self.sampling, seed=seed, max_tokens=limit),
                        sink=sinks[len(made)],
                        text=self._text(model),
                        stream=self.stream,
                    )
                )
        return made

    def _text(self, model: LoadedModel) -> GenerationText | None:
        if not (self.text or self.stop):
            return None
        return GenerationText(
            model.decode,
            stop=self.stop,
            skip_special_tokens=self.skip_special_tokens,
            include_stop=self.include_stop,
        )


def decode(raw: bytes, kind: type[T]) -> T:
    """Decodes a body. Raises `EngineRequestRejected`, also for parameters that this engine
    lacks."""
    try:
        members = msgspec.json.decode(raw)
        body = msgspec.convert(members, kind)
    except (ValueError, RecursionError) as error:
        raise errors.undecodable(error) from error
    _reject_unsupported(members, kind)
    return body


def _reject_unsupported(members: dict[str, Any], kind: type[Struct], *, where: str = "") -> None:
    supported = frozenset(kind.__struct_fields__) - _UNSUPPORTED
    for name, value in members.items():
        if value is None or name in _IGNORED or value in _NEUTRAL.get(name, ()):
            continue
        if name not in supported:
            raise errors.unsupported(f"{where}{name}")
        if name in _NESTED:
            _reject_unsupported(value, _NESTED[name], where=f"{name}.")


def parse_completions(raw: bytes, model: LoadedModel, *, served: str) -> ParsedRequest:
    """Parses a request of `/v1/completions`."""
    body = decode(raw, CompletionsRequest)
    check_model(body.model, served)
    return build(
        body,
        body,
        model=model,
        prompts=_prompts(body.prompt, model),
        max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
    )


def parse_generate(raw: bytes, model: LoadedModel, *, served: str) -> ParsedRequest:
    """Parses a request of `/inference/v1/generate`: tokens in, tokens out."""
    body = decode(raw, GenerateRequest)
    check_model(body.model, served)
    if not body.token_ids:
        raise errors.malformed("token_ids", "List should have at least 1 item")
    params = body.sampling_params or GenerateSamplingParams()
    parsed = build(
        body,
        params,
        model=model,
        prompts=[body.token_ids],
        max_tokens=params.max_tokens,
        logprobs=params.logprobs,
    )
    parsed.token_ids, parsed.text = True, False
    return parsed


def build(
    body: OpenAIRequest | GenerateRequest,
    params: SamplingFields,
    *,
    model: LoadedModel,
    prompts: list[list[int]],
    max_tokens: int | None,
    logprobs: int | None,
) -> ParsedRequest:
    """Checks the parameters that all endpoints share, and builds the request from them."""
    n = check_range("n", params.n, 1, _MAX_CHOICES) or 1
    check_range("logprobs", logprobs, 0, MAX_LOGPROBS)
    sampling = _sampling(params, model, max_tokens=max_tokens)
    for prompt in prompts:
        check_prompt(prompt, max_tokens=max_tokens, max_model_len=model.max_length)
        _check_ids(prompt, model)
    if len(prompts) * n > _MAX_CHOICES:
        rule = f"such that all prompts have at most {_MAX_CHOICES} choices"
        raise errors.invalid_parameter("n", rule, n)
    return ParsedRequest(
        prompts=prompts,
        n=n,
        sampling=replace(sampling, logprobs=logprobs),
        max_tokens=max_tokens,
        stop=params.stops,
        stream=bool(body.stream),
        usage_chunk=ends_with_usage(body),
        token_ids=bool(body.return_token_ids),
        prompt_ids=bool(body.return_token_ids),
        skip_special_tokens=params.skip_special_tokens is not False,
        include_stop=bool(params.include_stop_str_in_output),
    )


def _sampling(
    params: SamplingFields, model: LoadedModel, *, max_tokens: int | None
) -> TokenSampling:
    seed = check_range("seed", params.seed, sampler.SEED_LEAST, sampler.SEED_MOST)
    temperature = 1.0 if params.temperature is None else params.temperature
    top_p = 1.0 if params.top_p is None else params.top_p
    check_sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    check_altering(params)
    if 0 < temperature < _MIN_TEMPERATURE:
        rule = f"0 or at least {_MIN_TEMPERATURE}"
        raise errors.invalid_parameter("temperature", rule, temperature)
    if not all(params.stops):
        raise errors.invalid_parameter("stop", "without empty strings", params.stop)
    stop_ids = params.stop_token_ids or []
    biases = {int(token): bias for token, bias in (params.logit_bias or {}).items()}
    _check_ids([*stop_ids, *biases], model)
    return TokenSampling(
        max_tokens=1,
        temperature=temperature,
        top_p=top_p,
        seed=sampler.fresh_seed() if seed is None else seed,
        stop_token_ids=frozenset(stop_ids),
        ignore_eos=bool(params.ignore_eos),
        top_k=max(params.top_k or 0, 0),
        min_p=params.min_p or 0.0,
        presence_penalty=params.presence_penalty or 0.0,
        frequency_penalty=params.frequency_penalty or 0.0,
        repetition_penalty=params.repetition_penalty or 1.0,
        logit_bias=tuple(sorted(biases.items())),
    )


def check_range(name: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None and not least <= value <= most:
        raise errors.invalid_parameter(name, f"between {least} and {most}", value)
    return value


def _check_ids(ids: Sequence[int], model: LoadedModel) -> None:
    for token in ids:
        if not 0 <= token < model.vocabulary:
            raise errors.out_of_vocabulary(token)


def _prompts(prompt: str | list[Any], model: LoadedModel) -> list[list[int]]:
    """Returns the prompts as ids. `prompt` is a string, ids, or a list of either."""
    if not prompt:
        raise errors.empty_prompt()
    single = isinstance(prompt, str) or all(isinstance(item, int) for item in prompt)
    return [_ids(item, model) for item in ([prompt] if single else prompt)]


def _ids(prompt: str | int | list[Any], model: LoadedModel) -> list[int]:
    if isinstance(prompt, str):
        return [int(token) for token in model.tokenizer(prompt)["input_ids"]]
    if isinstance(prompt, int):
        raise errors.malformed("prompt", "Input should be text, token ids, or a list of either")
    return prompt
