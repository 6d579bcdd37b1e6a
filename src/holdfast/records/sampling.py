"""Sampling: how tokens are drawn."""

import math
import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct, structs

from holdfast.records.encoding.bounds import check_number, check_whole
from holdfast.records.errors import UsageError

_LEVEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")
REQUIRED, NAMED = "required", "tool:"
"""Values of `tool_choice`: any call, and the beginning of that of a certain one."""
NO_REASONING = "none"
"""The effort of a model that is not to reason at all."""
_NO_SCHEMA = "a JSON schema is an object, or the text of one"


class Sampling(Struct, frozen=True, omit_defaults=True, gc=False):
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
    """Of how many of the likeliest tokens each is drawn; 0: of all."""
    tool_choice: str = ""
    """What the reply has to call: `required` for any tool, `tool:NAME` for this one; "": it may."""
    parallel_tool_calls: bool = True
    """False: it makes one call at most."""
    thinking_token_budget: int | None = None
    """After how many tokens of reasoning the engine ends it; None: when the model does."""

    @property
    def is_cut(self) -> bool:
        """Whether some tokens could not be drawn, since others were likelier."""
        return self.top_p != 1 or self.top_k != 0

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
        """The one tool that has to be called; "" where there is none."""
        return self.tool_choice.removeprefix(NAMED) if self.tool_choice.startswith(NAMED) else ""

    @property
    def schema(self) -> dict[str, object] | None:
        """What the reply has to fit; None where any JSON will do, or none is wanted."""
        if not isinstance(self.json, str):
            return None
        found: dict[str, object] = msgspec.json.decode(self.json)
        return found


def _check_stop(stop: object) -> None:
    if not isinstance(stop, tuple) or not all(isinstance(text, str) for text in stop):
        raise UsageError(f'stop is a tuple of texts, like ("END",), not {stop!r:.100}')


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
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{_NO_SCHEMA}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{_NO_SCHEMA}, not {text[:100]!r}")
