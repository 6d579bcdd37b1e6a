"""Sampling: how tokens are drawn."""

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
"""Values of `tool_choice`: any call, and the beginning of that of a certain one."""
NO_REASONING = "none"
"""The effort of a model that is not to reason at all."""
_NO_SCHEMA = "a JSON schema is an object, or the text of one"
_ZERO, _ONE = 0.0, 1.0
"""What is not written is recognized by its identity."""
MAX_BIAS = 100
MAX_LISTED = 1024
"""Tokens that are named one by one: they are recorded with each reply."""
MAX_OBJECT = 65_536
"""Bytes of an object that is passed on; recorded with each reply, too."""
_TAKEN = frozenset(
    (
        *("model", "prompt", "messages", "tools", "token_ids", "input_ids", "text"),
        *("n", "seed", "sampling_seed", "stream", "stream_options", "max_new_tokens"),
        *("max_completion_tokens", "logprobs", "top_logprobs", "return_logprob"),
        *("logprob_start_len", "return_token_ids", "response_format", "structured_outputs"),
        # Another prompt than the recorded one.
        *("prompt_embeds", "input_embeds", "suffix", "functions", "function_call", "documents"),
        *("chat_template", "add_generation_prompt", "continue_final_message"),
        *("add_special_tokens", "truncate_prompt_tokens", "lora_path"),
        # Another reply than the sampled one.
        *("echo", "best_of", "use_beam_search", "prompt_logprobs", "return_tokens_as_token_ids"),
    )
)
"""The fields that decide which prompt is answered and what is recorded. `extra_body` must not
contain them."""
_RENDERED = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "add_generation_prompt"),
        *("continue_final_message", "chat_template", "tokenize", "return_dict"),
        *("return_tensors", "padding", "truncation", "tokenizer_kwargs", "model"),
    )
)
"""What rendering itself gives to a template."""
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
    """How tokens are drawn. Part of a step's fingerprint: another value is another step.

    What is left at its default is not written: a field that is added changes no record.
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    json: bool | str = False
    """True: the reply is JSON; a text: it is JSON that fits this schema, which is JSON itself. The
    order of a schema's members is kept, since engines write properties in it."""
    reasoning_effort: str | None = None
    """How long the model is to think, as its template or its engine names it: low, high, …"""
    top_k: int = 0
    """How many of the likeliest tokens each token is drawn from; 0: all."""
    tool_choice: str = ""
    """The call that the reply must have: `required` for any tool, `tool:NAME` for a certain one;
    "": none."""
    parallel_tool_calls: bool = True
    """False: it makes one call at most."""
    thinking_token_budget: int | None = None
    """The number of reasoning tokens after which the engine ends the reasoning; None: no limit."""
    min_p: float = _ZERO
    """Tokens are not drawn that are less likely than this share of the likeliest; 0: all are."""
    presence_penalty: float = _ZERO
    """Taken off the logits of tokens that the reply has already."""
    frequency_penalty: float = _ZERO
    """The same for each time that the reply has them."""
    repetition_penalty: float = _ONE
    """By which tokens that prompt or reply have already are made less likely (above 1)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of tokens: (id, bias), in the order of ids. May be given as a dict."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a reply, beside those that end a turn of the model."""
    ignore_eos: bool = False
    """True: the reply goes on after what would end it, up to `max_tokens`."""
    extra_body: str = ""
    """Members that are added to the request to the engine: JSON, an object. May be given as a
    dict."""
    chat_template_kwargs: str = ""
    """Arguments for the model's chat template, such as `enable_thinking`: JSON, an object. May be
    given as a dict."""
    routed_experts: bool = False
    """True: the experts that each token was routed to are asked for, and recorded."""
    separate_reasoning: bool = True
    """False: a `<think>…</think>` at the beginning of what a chat engine sends stays in the text.
    """

    def changed(self, names: Iterable[str]) -> tuple[str, ...]:
        """The parameters that differ from their defaults."""
        return tuple(name for name in names if getattr(self, name) != getattr(_DEFAULT, name))

    @property
    def is_cut(self) -> bool:
        """Whether some tokens could not be drawn, since others were likelier."""
        return bool(self.changed(_CUTTING))

    @property
    def is_bent(self) -> bool:
        """Whether the sampling changes the model's probabilities of some tokens. For parameters
        that are passed on unread, this is unknown."""
        return bool(self.changed(_BENDING))

    @property
    def altered_by(self) -> tuple[str, ...]:
        """The parameters by which tokens are drawn from another distribution than the model's own
        at this temperature. A trainer knows no other."""
        return self.changed((*_CUTTING, *_BENDING, *_CONSTRAINING))

    @property
    def starts_anew(self) -> bool:
        """Whether a reply cannot go on from its first tokens: an engine counts the tokens of a
        reply in each request from 0 on."""
        return bool(self.presence_penalty or self.frequency_penalty or self.extra_body)

    @property
    def biases(self) -> dict[str, float]:
        """`logit_bias` as engines take it."""
        return {str(token): bias for token, bias in self.logit_bias}

    @property
    def extra(self) -> dict[str, object]:
        """`extra_body` as an object."""
        return _object(self.extra_body)

    @property
    def template_kwargs(self) -> dict[str, object]:
        """`chat_template_kwargs` as an object."""
        return _object(self.chat_template_kwargs)

    def __post_init__(self) -> None:
        # Each record that is read passes here: what is as it should be costs little.
        self._check_numbers()
        if isinstance(self.json, str):
            _check_schema(self.json)
        elif not isinstance(self.json, bool):
            raise UsageError("json is True, False, or the text of a JSON schema (see schema_text)")
        if isinstance(self.stop, list):  # It is hashed, and compared with what is recorded.
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
        """Makes what is equal to a default the default itself, so that it is not written."""
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
        """The one tool that must be called; "" if there is none."""
        return self.tool_choice.removeprefix(NAMED) if self.tool_choice.startswith(NAMED) else ""

    @property
    def schema(self) -> dict[str, object] | None:
        """The schema that the reply must fit; None if any JSON, or no JSON, is wanted."""
        if not isinstance(self.json, str):
            return None
        decoded: dict[str, object] = msgspec.json.decode(self.json)
        return decoded


_DEFAULT = Sampling()


def changed_parameters(sampling: Sampling) -> dict[str, object]:
    """The parameters that differ from their defaults, as in JSON."""
    given = msgspec.to_builtins(sampling)
    return {name: given[name] for name in sampling.changed(given)}


def as_kept(given: Mapping[str, object]) -> dict[str, object]:
    """Parameters with objects as `Sampling` keeps them. Raises `UsageError`."""
    kept = dict(given)
    if "logit_bias" in kept:
        kept["logit_bias"] = bias_of(kept["logit_bias"])
    for name in ("extra_body", "chat_template_kwargs"):
        if name in kept:
            kept[name] = object_text(name, kept[name])
    return kept


def wrong_type(given: Mapping[str, object]) -> str:
    """The first of the parameters that is of another type than it has, in words; "": none is."""
    for field in msgspec.structs.fields(Sampling):
        if field.name not in given:
            continue
        try:
            msgspec.convert(given[field.name], field.type)
        except msgspec.ValidationError:
            return f"{field.name} is {_in_words(field.type)}, not {given[field.name]!r:.100}"
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
    """The input of fingerprints, as an object. A struct's header would contain the number of its
    fields, so a new field would change all fingerprints."""
    return msgspec.msgpack.encode(msgspec.to_builtins(sampling))


def _check_stop(stop: object) -> None:
    if not isinstance(stop, tuple) or not all(isinstance(text, str) for text in stop):
        raise UsageError(f'stop is a tuple of texts, like ("END",), not {stop!r:.100}')


def bias_of(biases: object) -> tuple[tuple[int, float], ...]:
    """`Sampling.logit_bias` from an object, as chat APIs have it, or from pairs."""
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
    """A JSON object as `Sampling` keeps it: text, its members in one order; "" for none."""
    if isinstance(mapping, str):
        try:
            mapping = msgspec.json.decode(mapping)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name} is no JSON: {error}") from error
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
    """A JSON schema as `Sampling` keeps it."""
    try:
        return msgspec.json.encode(dict(schema)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{_NO_SCHEMA}: {error}") from error


def json_of(response_format: object) -> bool | str:
    """What `Sampling.json` is for chat APIs' `response_format`."""
    if not isinstance(response_format, Mapping):
        raise UsageError("response_format is an object with a type")
    kind = response_format.get("type")
    if kind == "json_object" and isinstance(schema := response_format.get("schema"), Mapping):
        return schema_text(schema)  # As Fireworks has it.
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
    """The same, the other way round; None where the reply may be anything."""
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
