"""The parameters that OpenAI's chat and text completions share.

Each parameter is one of four: followed (typed here), about the books and not about the sample
(accepted, whatever it says), followed only where it asks for nothing (`NEUTRAL`), or unknown
(refused by name). None is passed over in silence.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.gateway.wires.openai.errors import unsupported, unsupported_value
from holdfast.gateway.wires.openai.formats import ResponseFormat, json_of

MOST_TOKENS = 2**31 - 1

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Budget = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding of the events; there is none here."""


class SamplingParameters(Struct, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. Null means the same as nothing."""

    model: Text
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: Text | list[Text] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None

    # About the books.
    user: object = None
    metadata: object = None
    store: object = None
    service_tier: object = None
    safety_identifier: object = None
    prompt_cache_key: object = None
    prompt_cache_options: object = None
    prompt_cache_retention: object = None
    request_id: object = None
    priority: object = None
    cache_salt: object = None

    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MOST_TOKENS)] | None = None
    thinking_token_budget: Budget | None = None

    # Followed only where they ask for nothing: see NEUTRAL.
    frequency_penalty: object = None
    presence_penalty: object = None
    repetition_penalty: object = None
    length_penalty: object = None
    logit_bias: object = None
    min_p: object = None
    min_tokens: object = None
    best_of: object = None
    use_beam_search: object = None
    ignore_eos: object = None
    stop_token_ids: object = None
    bad_words: object = None
    allowed_token_ids: object = None
    include_stop_str_in_output: object = None
    skip_special_tokens: object = None
    spaces_between_special_tokens: object = None
    prompt_logprobs: object = None
    return_tokens_as_token_ids: object = None
    structured_outputs: object = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def likeliest(self) -> int | None:
        """`top_k` as `Sampling` has it; None where it asks for nothing."""
        return self.top_k if self.top_k is not None and self.top_k > 0 else None

    @property
    def json(self) -> bool | str:
        return json_of(self.response_format, param="response_format")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


NEUTRAL: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "structured_outputs": (),
}

_WHY = {
    "functions": "it is deprecated; use 'tools'.",
    "function_call": "it is deprecated; use 'tools' and 'tool_choice'.",
    "structured_outputs": "ask for JSON with 'response_format'; nothing else constrains a sample.",
    "chat_template_kwargs": "how messages are rendered is the policy's setting.",
}
_USUAL = "it would change what is sampled; leave it out."


def only_neutral(asked: Struct, neutral: Mapping[str, tuple[object, ...]], *, at: str = "") -> None:
    """Refuses a member that asks for something, by its name; `at` is the path before the name."""
    for name, accepted in neutral.items():
        value = getattr(asked, name)
        if value is None or any(_same(value, neutral_value) for neutral_value in accepted):
            continue
        why = _WHY.get(name, _USUAL)
        if accepted:
            raise unsupported_value(f"{at}{name}", value, why)
        raise unsupported(f"{at}{name}", why)


def _same(value: object, accepted: object) -> bool:
    """Equal as JSON: true is not 1."""
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)
