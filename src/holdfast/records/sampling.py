"""Defines how tokens are sampled."""

import math
import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, structs

from holdfast.records.encoding.bounds import check_number, check_whole
from holdfast.records.encoding.declared import NamedFields
from holdfast.records.errors import UsageError

_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")
REQUIRED, NAMED = "required", "tool:"
"""Values of `tool_choice`: any tool, and the prefix of a named tool."""
NO_REASONING = "none"
"""The reasoning effort that turns reasoning off."""
_NO_SCHEMA = "a JSON schema is an object, or the text of one"
_ZERO, _ONE = 0.0, 1.0
"""Defaults that are compared by identity. A value that is the default object is not written."""
MAX_BIAS = 100
MAX_LISTED = 1024
"""The maximum number of tokens that a field lists. Each reply records these tokens."""
MAX_OBJECT = 65_536
"""The maximum size in bytes of an object that is passed on. Each reply records the object."""
_TAKEN = frozenset(
    (
        *("model", "prompt", "messages", "tools", "token_ids", "input_ids", "text"),
        *("n", "seed", "sampling_seed", "stream", "stream_options", "max_new_tokens"),
        *("max_completion_tokens", "logprobs", "top_logprobs", "return_logprob"),
        *("logprob_start_len", "return_token_ids", "response_format", "structured_outputs"),
        # These change the prompt, which would differ from the recorded one.
        *("prompt_embeds", "input_embeds", "suffix", "functions", "function_call", "documents"),
        *("chat_template", "add_generation_prompt", "continue_final_message"),
        *("add_special_tokens", "truncate_prompt_tokens", "lora_path"),
        # These change the reply, which would differ from the sampled one.
        *("echo", "best_of", "use_beam_search", "prompt_logprobs", "return_tokens_as_token_ids"),
    )
)
"""Request fields that decide which prompt is answered and what is recorded. `extra_body` must not
contain them."""
_RENDERED = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "add_generation_prompt"),
        *("continue_final_message", "chat_template", "tokenize", "return_dict"),
        *("return_tensors", "padding", "truncation", "tokenizer_kwargs", "model"),
    )
)
"""Arguments that rendering itself passes to a chat template."""
_CUTTING = ("top_p", "top_k", "min_p")
_BENDING = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "extra_body",
)
_CONSTRAINING = ("json", "tool_choice", "parallel_tool_calls", "thinking_token_budget")


class Sampling(Struct, frozen=True, omit_defaults=True, gc=False, metaclass=NamedFields):
    """The parameters of sampling. They are part of a step's fingerprint, so a step with other
    parameters counts as another step.

    Parameters with their default values are not written, so that a new field changes no existing
    record.
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    json: bool | str = False
    """If True, the reply is JSON. If a text, the reply is JSON that fits this JSON schema. The
    order of the schema's members is kept, because engines write properties in this order."""
    reasoning_effort: str | None = None
    """The reasoning effort, in the words of the model's template or engine: low, high, …"""
    top_k: int = 0
    """The number of likeliest tokens from which each token is drawn; 0 for all tokens."""
    tool_choice: str = ""
    """The tool call that the reply must contain: `required` for any tool, `tool:NAME` for the named
    tool, "" for no required call."""
    parallel_tool_calls: bool = True
    """If False, a reply makes at most one call."""
    thinking_token_budget: int | None = None
    """The number of reasoning tokens after which the engine ends the reasoning; None for no
    limit."""
    min_p: float = _ZERO
    """Excludes tokens whose probability is below this share of the likeliest token's probability; 0
    excludes no token."""
    presence_penalty: float = _ZERO
    """Subtracted from the logits of tokens that the reply already contains."""
    frequency_penalty: float = _ZERO
    """Subtracted from a token's logit for each occurrence of the token in the reply."""
    repetition_penalty: float = _ONE
    """A factor that makes tokens of the prompt and the reply less likely if it is above 1."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Biases that are added to the logits of tokens: pairs (id, bias) in the order of ids. The
    caller may pass a dict."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a reply, besides the tokens that end a turn of the model."""
    ignore_eos: bool = False
    """If True, the reply ignores end tokens and goes on up to `max_tokens`."""
    extra_body: str = ""
    """A JSON object whose members are added to the request to the engine. The caller may pass a
    dict."""
    chat_template_kwargs: str = ""
    """A JSON object of arguments for the model's chat template, such as `enable_thinking`. The
    caller may pass a dict."""
    routed_experts: bool = False
    """If True, the engine returns the routed experts of each token, and they are recorded."""
    separate_reasoning: bool = True
    """If False, a `<think>…</think>` at the beginning of a chat engine's reply stays in the
    text."""

    def changed(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names among `names` of parameters that differ from their defaults."""
        return tuple(name for name in names if getattr(self, name) != getattr(_DEFAULT, name))

    @property
    def is_cut(self) -> bool:
        """Returns whether unlikely tokens are excluded from sampling."""
        return bool(self.changed(_CUTTING))

    @property
    def is_bent(self) -> bool:
        """Returns whether the sampling changes the model's probabilities of some tokens. The effect
        of `extra_body` is unknown, so it counts as a change."""
        return bool(self.changed(_BENDING))

    @property
    def altered_by(self) -> tuple[str, ...]:
        """Returns the parameters that change the distribution of tokens from the model's own
        distribution at this temperature. A trainer knows only the model's own distribution."""
        return self.changed((*_CUTTING, *_BENDING, *_CONSTRAINING))

    @property
    def starts_anew(self) -> bool:
        """Returns whether an interrupted reply must start again from its first token. The effect of
        some parameters depends on the tokens that the reply already has, and an engine counts these
        from 0 in each request."""
        return bool(self.presence_penalty or self.frequency_penalty or self.extra_body)

    @property
    def biases(self) -> dict[str, float]:
        """Returns `logit_bias` in the shape that engines take."""
        return {str(token): bias for token, bias in self.logit_bias}

    @property
    def extra(self) -> dict[str, object]:
        """Returns `extra_body` as an object."""
        return _object(self.extra_body)

    @property
    def template_kwargs(self) -> dict[str, object]:
        """Returns `chat_template_kwargs` as an object."""
        return _object(self.chat_template_kwargs)

    def __post_init__(self) -> None:
        # Every decoded record passes here, so valid values must cost little.
        self._check_numbers()
        if isinstance(self.json, str):
            _check_schema(self.json)
        elif not isinstance(self.json, bool):
            raise UsageError("json is True, False, or the text of a JSON schema (see schema_text)")
        if isinstance(self.stop, list):  # A tuple can be hashed and compared with the record.
            structs.force_setattr(self, "stop", tuple(self.stop))
        if self.stop != ():
            _check_stop(self.stop)
        if self.reasoning_effort is not None:
            _check_effort(self.reasoning_effort)
        if self.top_k != 0:
            check_whole("top_k", self.top_k, least=0)
        if self.tool_choice != "":
            _check_choice(self.tool_choice)
        if self.thinking_token_budget is not None:
            check_whole("thinking_token_budget", self.thinking_token_budget, least=0)
        self._check_penalties()
        self._check_listed()
        self._check_objects()

    def _check_penalties(self) -> None:
        """Checks the penalties. Replaces a value that equals its default by the default object, so
        that it is not written."""
        if self.min_p is not _ZERO:
            self._check_between("min_p", 0, 1)
        if self.presence_penalty is not _ZERO:
            self._check_between("presence_penalty", -2, 2)
        if self.frequency_penalty is not _ZERO:
            self._check_between("frequency_penalty", -2, 2)
        if self.repetition_penalty is not _ONE:
            check_number("repetition_penalty", self.repetition_penalty)
            if not 0 < self.repetition_penalty < math.inf:
                raise UsageError(
                    "repetition_penalty must be above 0, where 1 changes nothing, not "
                    f"{self.repetition_penalty}"
                )
            self._set("repetition_penalty", float(self.repetition_penalty), _ONE)

    def _check_between(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        check_number(name, value)
        if not least <= value <= most:
            raise UsageError(f"{name} must be {least} to {most}, not {value}")
        self._set(name, float(value), _ZERO)

    def _check_listed(self) -> None:
        if self.logit_bias != ():
            structs.force_setattr(self, "logit_bias", bias_of(self.logit_bias))
        if self.stop_token_ids != ():
            structs.force_setattr(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        for name in ("ignore_eos", "routed_experts", "separate_reasoning"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"{name} is True or False, not {value!r:.100}")

    def _check_objects(self) -> None:
        if self.extra_body != "":
            text = object_text("extra_body", self.extra_body)
            structs.force_setattr(self, "extra_body", text)
            _check_extra(_object(text))
        if self.chat_template_kwargs != "":
            text = object_text("chat_template_kwargs", self.chat_template_kwargs)
            structs.force_setattr(self, "chat_template_kwargs", text)
            if taken := sorted(_object(text).keys() & _RENDERED):
                raise UsageError(f"chat_template_kwargs.{taken[0]}: rendering itself gives it")

    def _set(self, name: str, value: float, default: float) -> None:
        structs.force_setattr(self, name, default if value == default else value)

    def _check_numbers(self) -> None:
        if type(self.max_tokens) is not int or not 0 < self.max_tokens < 2**63:
            check_whole("max_tokens", self.max_tokens, least=1)
        if type(self.temperature) is not float:
            check_number("temperature", self.temperature)
        if not math.isfinite(self.temperature):
            raise UsageError(f"temperature must be a finite number, not {self.temperature}")
        if self.temperature < 0:
            raise UsageError(f"temperature must be 0 or more, not {self.temperature}")
        if type(self.top_p) is not float:
            check_number("top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, not {self.top_p}")

    @property
    def forced_tool(self) -> str:
        """Returns the name of the tool that the reply must call; "" if no tool is named."""
        return self.tool_choice.removeprefix(NAMED) if self.tool_choice.startswith(NAMED) else ""

    @property
    def schema(self) -> dict[str, object] | None:
        """Returns the schema that the reply must fit; None if there is no schema."""
        if not isinstance(self.json, str):
            return None
        decoded: dict[str, object] = msgspec.json.decode(self.json)
        return decoded


_DEFAULT = Sampling()


def changed_parameters(sampling: Sampling) -> dict[str, object]:
    """Returns the parameters that differ from their defaults, as JSON values."""
    fields = msgspec.to_builtins(sampling)
    return {name: fields[name] for name in sampling.changed(fields)}


def as_kept(fields: Mapping[str, object]) -> dict[str, object]:
    """Converts parameters to the form that `Sampling` stores. Raises `UsageError`."""
    kept = dict(fields)
    if "logit_bias" in kept:
        kept["logit_bias"] = bias_of(kept["logit_bias"])
    for name in ("extra_body", "chat_template_kwargs"):
        if name in kept:
            kept[name] = object_text(name, kept[name])
    return kept


def wrong_type(fields: Mapping[str, object]) -> str:
    """Describes the first parameter with a wrong type; "" if all types are right."""
    for field in msgspec.structs.fields(Sampling):
        if field.name not in fields:
            continue
        try:
            msgspec.convert(fields[field.name], field.type)
        except msgspec.ValidationError:
            return f"{field.name} is {_in_words(field.type)}, not {fields[field.name]!r:.100}"
    return ""


def _in_words(kind: object) -> str:
    names: dict[object, str] = {
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        bool | str: "True, False or a JSON schema",
        tuple[str, ...]: "a list of texts",
        tuple[int, ...]: "a list of token ids",
        int | None: "a whole number",
    }
    return names.get(kind, "a text")


def packed(sampling: Sampling) -> bytes:
    """Returns the input of fingerprints, encoded as a map. A struct would encode the number of its
    fields, so a new field would change all fingerprints."""
    return msgspec.msgpack.encode(msgspec.to_builtins(sampling))


def _check_stop(stop: object) -> None:
    if not isinstance(stop, tuple) or not all(isinstance(text, str) for text in stop):
        raise UsageError(f'stop is a tuple of texts, like ("END",), not {stop!r:.100}')


def bias_of(biases: object) -> tuple[tuple[int, float], ...]:
    """Returns `Sampling.logit_bias` from an object in the shape of chat APIs, or from pairs. Raises
    `UsageError`."""
    items = biases.items() if isinstance(biases, Mapping) else biases
    wanted = "logit_bias is an object of token ids and numbers, like {42: -100}"
    try:
        pairs = [(int(token), _number(bias)) for token, bias in items]  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{wanted}, not {biases!r:.100}") from None
    for token, bias in pairs:
        _check_token("logit_bias", token)
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise UsageError(
                f"logit_bias of token {token} must be -{MAX_BIAS} to {MAX_BIAS}, not {bias:g}"
            )
    if len(dict(pairs)) < len(pairs):
        raise UsageError("logit_bias names a token twice")
    _check_count("logit_bias", len(pairs))
    return tuple(sorted(pairs))


def _number(bias: object) -> float:
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise TypeError
    return float(bias)


def _token_ids(token_ids: object) -> tuple[int, ...]:
    if not isinstance(token_ids, tuple | list):
        raise UsageError(
            f"stop_token_ids are a tuple of token ids, like (2,), not {token_ids!r:.100}"
        )
    for token in token_ids:
        _check_token("stop_token_ids", token)
    _check_count("stop_token_ids", len(token_ids))
    return tuple(token_ids)


def _check_token(name: str, token: object) -> None:
    if type(token) is not int or not 0 <= token < 2**31:
        raise UsageError(f"{name}: a token id is a whole number from 0 on, not {token!r:.100}")


def _check_count(name: str, count: int) -> None:
    if count > MAX_LISTED:
        raise UsageError(f"{name} names {count:,} tokens, and can name {MAX_LISTED:,}")


def object_text(name: str, mapping: object) -> str:
    """Returns a JSON object as the text that `Sampling` stores, with its members in a fixed order;
    "" for an empty object. Raises `UsageError`."""
    if isinstance(mapping, str):
        try:
            mapping = msgspec.json.decode(mapping)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name} is not JSON: {error}") from error
    if not isinstance(mapping, Mapping):
        raise UsageError(f'{name} is a JSON object, like {{"name": true}}, not {mapping!r:.100}')
    try:
        text = msgspec.json.encode(dict(mapping), order="deterministic").decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name} cannot be written as JSON: {error}") from error
    if len(text) > MAX_OBJECT:
        raise UsageError(f"{name} has {len(text):,} characters, and can have {MAX_OBJECT:,}")
    return "" if text == "{}" else text


def _object(text: str) -> dict[str, object]:
    decoded: dict[str, object] = msgspec.json.decode(text) if text else {}
    return decoded


def _check_extra(extra: Mapping[str, object]) -> None:
    if named := sorted(extra.keys() & set(Sampling.__struct_fields__)):
        raise UsageError(f"extra_body.{named[0]}: give {named[0]} itself, and not in extra_body")
    if taken := sorted(extra.keys() & _TAKEN):
        raise UsageError(f"extra_body.{taken[0]}: the request says that itself")
    if isinstance(inner := extra.get("sampling_params"), Mapping):
        _check_extra(inner)


def _check_choice(choice: object) -> None:
    named = isinstance(choice, str) and choice.startswith(NAMED) and len(choice) > len(NAMED)
    if choice != REQUIRED and not named:
        raise UsageError(f"tool_choice is required, or {NAMED}NAME, not {choice!r:.100}")


def _check_effort(effort: object) -> None:
    if not isinstance(effort, str) or not _LEVEL.fullmatch(effort):
        raise UsageError(
            f"reasoning_effort is a word like low, medium or high, not {effort!r:.100}"
        )


def schema_text(schema: Mapping[str, object]) -> str:
    """Returns a JSON schema as the text that `Sampling` stores. Raises `UsageError`."""
    try:
        return msgspec.json.encode(dict(schema)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{_NO_SCHEMA}: {error}") from error


def json_of(response_format: object) -> bool | str:
    """Converts chat APIs' `response_format` to `Sampling.json`. Raises `UsageError`."""
    if not isinstance(response_format, Mapping):
        raise UsageError("response_format is an object with a type")
    kind = response_format.get("type")
    if kind == "json_object" and isinstance(schema := response_format.get("schema"), Mapping):
        return schema_text(schema)  # Fireworks writes it this way.
    if kind in ("text", "json_object"):
        return bool(kind == "json_object")
    if kind != "json_schema":
        raise UsageError(
            f"response_format.type is text, json_object or json_schema, not {str(kind)[:100]!r}"
        )
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping):
        raise UsageError("response_format.json_schema.schema: a JSON schema, an object, is missing")
    return schema_text(schema)


def response_format_of(sampling: Sampling) -> dict[str, object] | None:
    """Converts `Sampling.json` to chat APIs' `response_format`; None if the reply may be
    anything."""
    if sampling.json is False:
        return None
    schema = sampling.schema
    if schema is None:
        return {"type": "json_object"}
    title = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "answer"))[:64]
    return {"type": "json_schema", "json_schema": {"name": title, "schema": schema, "strict": True}}


def _check_schema(text: str) -> None:
    try:
        schema = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{_NO_SCHEMA}: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"{_NO_SCHEMA}, not {text[:100]!r}")
