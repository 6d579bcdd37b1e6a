"""The parameters that OpenAI's chat and text completions share.

There are four kinds of parameters. Some are followed, and have a type here. Some are only about
bookkeeping, and are accepted with any value. Some are accepted only with values that change nothing
(`neutral`). All others are unknown, and rejected by name. A JSON schema is followed with or without
`strict`, because an engine cannot follow it halfway. The model does not see the schema's name and
description.
"""

from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from holdfast.gateway.wires.altering import AlteringFields
from holdfast.gateway.wires.openai.errors import invalid, unsupported, unsupported_value
from holdfast.records.errors import UsageError
from holdfast.records.sampling import schema_text

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Name = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]


class PlainText(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    pass


class JsonObject(Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    pass


class _Schema(Struct, forbid_unknown_fields=True):
    name: _Name
    schema: dict[str, object]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """The format of a JSON schema in chat completions: `response_format`."""

    json_schema: _Schema


class FlatSchema(
    _Schema, tag="json_schema", tag_field="type", forbid_unknown_fields=True, kw_only=True
):
    """The format of a JSON schema in responses: `text.format`."""


ResponseFormat = PlainText | JsonObject | JsonSchemaFormat
TextFormat = PlainText | JsonObject | FlatSchema


def parse_format(form: ResponseFormat | TextFormat | None, *, param: str) -> bool | str:
    """Returns the value for `GenerationRequest.json`. Raises `RequestRejected`."""
    if form is None or isinstance(form, PlainText):
        return False
    if isinstance(form, JsonObject):
        return True
    schema = form.json_schema.schema if isinstance(form, JsonSchemaFormat) else form.schema
    try:
        return schema_text(schema)
    except UsageError as error:
        raise invalid(f"Invalid '{param}': {error}", param=param) from error


MAX_TOKENS = 2**31 - 1

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Budget = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


_USUAL = "it would change what is sampled; leave it out."


class Neutral(Struct, frozen=True):
    """The default of a parameter that may only be null or one of `values`, because these values
    change nothing."""

    values: tuple[object, ...]
    why: str
    """The reason why other values are rejected."""


def neutral(*values: object, why: str = _USUAL) -> Neutral:
    return Neutral(values, why)


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Asks for padding of the events, which are never padded here."""


class SamplingParameters(AlteringFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The parameters of both endpoints. Null is the same as no value."""

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

    # For the client's own records.
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
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    thinking_token_budget: Budget | None = None

    # Accepted only with values that change nothing.
    length_penalty: object = neutral(1)
    min_tokens: object = neutral(0)
    best_of: object = neutral(1)
    use_beam_search: object = neutral(False)
    bad_words: object = neutral([])
    allowed_token_ids: object = neutral()
    include_stop_str_in_output: object = neutral(False)
    skip_special_tokens: object = neutral(True)
    spaces_between_special_tokens: object = neutral(True)
    prompt_logprobs: object = neutral()
    return_tokens_as_token_ids: object = neutral(False)
    structured_outputs: object = neutral(
        why="ask for JSON with 'response_format'; nothing else constrains a sample."
    )

    @property
    def shared_fields(self) -> dict[str, Any]:
        """Returns the fields of a `GenerationRequest` that both endpoints have."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop": stop,
            "json": parse_format(self.response_format, param="response_format"),
            "top_k": self.top_k if self.top_k is not None and self.top_k > 0 else None,
            "altering": self.altering,
            "seed": self.seed,
            "n": self.n or 1,
            "stream": bool(self.stream),
            "token_ids": bool(self.return_token_ids),
            "include_usage": bool(self.stream_options and self.stream_options.include_usage),
        }


def reject_unless_neutral(body: Struct, *, at: str = "") -> None:
    """Raises `RequestRejected` for a parameter with a `Neutral` default and a value that is not
    neutral. `at` is the path before the parameter's name."""
    for name, neutral in _neutral_fields(type(body)):
        value = getattr(body, name)
        if value in (None, neutral) or any(_same(value, allowed) for allowed in neutral.values):
            continue
        if neutral.values:
            raise unsupported_value(f"{at}{name}", value, neutral.why)
        raise unsupported(f"{at}{name}", neutral.why)


@cache
def _neutral_fields(body: type[Struct]) -> tuple[tuple[str, Neutral], ...]:
    fields = ((field.name, field.default) for field in structs.fields(body))
    return tuple((name, value) for name, value in fields if isinstance(value, Neutral))


def _same(value: object, accepted: object) -> bool:
    """Returns whether two values are equal as JSON, where true is not 1."""
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)
