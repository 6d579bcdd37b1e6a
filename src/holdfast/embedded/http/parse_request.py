"""From a request's body to generations: parameters read, prompts made into ids, all checked."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.embedded.http.errors import (
    EngineRequestRejected,
    bad,
    malformed,
    too_long,
    unknown_model,
)
from holdfast.embedded.http.parse_fields import FieldReader, is_ids
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler import seeded_random
from holdfast.embedded.scheduler.detokenizer import GenerationText
from holdfast.embedded.scheduler.generation import Generation, Sink, TokenSampling

MAX_LOGPROBS = 20
_DEFAULT_MAX_TOKENS = 16
_MAX_CHOICES = 1024
_LEAST_TEMPERATURE = 1e-200
"""Logits divided by less are no numbers any more."""


class ParsedRequest(Struct, kw_only=True):
    """What a client wants, checked."""

    prompts: list[list[int]]
    n: int
    sampling: TokenSampling
    max_tokens: int | None
    """None: as many as fit."""
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    """Whether a stream ends with a chunk of usage."""
    return_ids: bool
    skip_special_tokens: bool
    include_stop: bool
    wants_text: bool = True
    tools: bool = False
    """Whether tool calls are to be found in the text."""

    def generations(self, model: LoadedModel, sinks: Sequence[Sink]) -> list[Generation]:
        """n for each prompt, in order; `sinks` has one for each."""
        made: list[Generation] = []
        for prompt in self.prompts:
            limit = self.max_tokens or model.max_length - len(prompt)
            for choice in range(self.n):
                seed = seeded_random.derived(self.sampling.seed, choice)
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
        if not (self.wants_text or self.stop):
            return None
        return GenerationText(
            model.decode,
            stop=self.stop,
            skip_special_tokens=self.skip_special_tokens,
            include_stop=self.include_stop,
        )


def common(
    body: FieldReader, model: LoadedModel, prompts: list[list[int]], **special: Any
) -> ParsedRequest:
    """The parameters that all endpoints share. `special` are those that differ."""
    n = body.integer("n", least=1, most=_MAX_CHOICES) or 1
    stream = body.flag("stream")
    options = body.inner("stream_options")
    asked = ParsedRequest(
        prompts=prompts,
        n=n,
        stream=stream,
        usage=options.flag("include_usage") and stream,
        return_ids=body.flag("return_token_ids"),
        **({} if "sampling" in special else sampled(body, model)),
        **special,
    )
    options.flag("continuous_usage_stats")
    options.finish()
    body.finish()
    check_prompts(asked, model)
    return asked


def sampled(body: FieldReader, model: LoadedModel) -> dict[str, Any]:
    """The parameters of sampling, by the names of `ParsedRequest`."""
    seed = body.integer("seed", least=seeded_random.SEED_LEAST, most=seeded_random.SEED_MOST)
    temperature = body.number("temperature", 1.0)
    if temperature < 0:
        raise bad("temperature", "non-negative", temperature)
    if 0 < temperature < _LEAST_TEMPERATURE:
        raise bad("temperature", f"0 or at least {_LEAST_TEMPERATURE}", temperature)
    top_p = body.number("top_p", 1.0)
    if not 0 < top_p <= 1:
        raise bad("top_p", "in (0, 1]", top_p)
    stops = body.ids("stop_token_ids") or []
    _check_ids(stops, model)
    return {
        "sampling": TokenSampling(
            max_tokens=1,
            temperature=temperature,
            top_p=top_p,
            seed=seeded_random.fresh_seed() if seed is None else seed,
            stop_token_ids=frozenset(stops),
            ignore_eos=body.flag("ignore_eos"),
        ),
        "stop": body.strings("stop"),
        "skip_special_tokens": body.flag("skip_special_tokens", default=True),
        "include_stop": body.flag("include_stop_str_in_output"),
    }


def completions(body: FieldReader, model: LoadedModel, *, served: str) -> ParsedRequest:
    """`/v1/completions`."""
    check_model(body, served, required=True)
    prompts = _prompts(body.take("prompt"), model)
    max_tokens = body.integer("max_tokens", least=1) or _DEFAULT_MAX_TOKENS
    logprobs = body.integer("logprobs", least=0, most=MAX_LOGPROBS)
    asked = common(body, model, prompts, max_tokens=max_tokens)
    asked.sampling = with_logprobs(asked.sampling, logprobs)
    return asked


def generate(body: FieldReader, model: LoadedModel, *, served: str) -> ParsedRequest:
    """`/inference/v1/generate`: tokens in, tokens out."""
    check_model(body, served, required=False)
    ids = body.ids("token_ids")
    if not ids:
        raise malformed("token_ids", "List should have at least 1 item")
    inner = body.inner("sampling_params")
    max_tokens = inner.integer("max_tokens", least=1)
    logprobs = inner.integer("logprobs", least=0, most=MAX_LOGPROBS)
    n = inner.integer("n", least=1, most=_MAX_CHOICES) or 1
    special = sampled(inner, model)
    inner.finish()
    asked = common(body, model, [ids], max_tokens=max_tokens, wants_text=False, **special)
    asked.n = n
    asked.sampling = with_logprobs(asked.sampling, logprobs)
    return asked


def check_model(body: FieldReader, served: str, *, required: bool) -> None:
    name = body.take("model")
    if name is None and required:
        raise malformed("model", "Field required")
    if name is not None and name != served:
        raise unknown_model(name, served)


def check_prompts(asked: ParsedRequest, model: LoadedModel) -> None:
    """Every prompt has tokens, all of the vocabulary, and fits with what is to be sampled."""
    for prompt in asked.prompts:
        if not prompt:
            raise EngineRequestRejected(400, "The decoder prompt cannot be empty", param="prompt")
        _check_ids(prompt, model)
        if len(prompt) + (asked.max_tokens or 1) > model.max_length:
            raise too_long(model.max_length, len(prompt), asked.max_tokens or 1)
    if len(asked.prompts) * asked.n > _MAX_CHOICES:
        raise bad("n", f"such that all prompts have at most {_MAX_CHOICES} choices", asked.n)


def _check_ids(ids: Sequence[int], model: LoadedModel) -> None:
    for token in ids:
        if not 0 <= token < model.vocabulary:
            raise EngineRequestRejected(400, f"Token id {token} is out of vocabulary")


def _prompts(prompt: Any, model: LoadedModel) -> list[list[int]]:
    """A string, ids, or a list of either."""
    if prompt is None:
        raise malformed("prompt", "Field required")
    if prompt in ("", []):
        raise EngineRequestRejected(400, "The decoder prompt cannot be empty", param="prompt")
    several = prompt if isinstance(prompt, list) and not is_ids(prompt) else [prompt]
    return [_ids(one, model) for one in several]


def _ids(prompt: Any, model: LoadedModel) -> list[int]:
    if isinstance(prompt, str):
        return [int(one) for one in model.tokenizer(prompt)["input_ids"]]
    if not is_ids(prompt):
        raise malformed("prompt", "Input should be text, token ids, or a list of either")
    return list(prompt)


def with_logprobs(sampling: TokenSampling, logprobs: int | None) -> TokenSampling:
    return replace(sampling, logprobs=logprobs)
