"""Tools: Python functions that a model may call.

A tool says what may happen to a call of which nobody knows whether it ran (`Contract`). The
default is the careful one: it is not run again, and the model is told.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, get_type_hints, overload

import msgspec

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.records.message import FunctionCall, ToolCall
from holdfast.records.step import Contract

DEFAULT_TIMEOUT = 600.0
KEY_PARAMETER = "idempotency_key"
MAX_RESULT = 64 * 1024 * 1024

Function = Callable[..., "Awaitable[object] | object"]


class InvalidArguments(ToolSaysNo):
    """The model's arguments do not fit the tool."""


class Tool:
    """A function with a name, a schema, a contract and a deadline.

    A parameter called `idempotency_key` is not shown to the model: it gets a key that is the same
    whenever the same call is run again.
    """

    def __init__(
        self,
        function: Function,
        *,
        contract: Contract | str = Contract.AT_MOST_ONCE,
        timeout: float = DEFAULT_TIMEOUT,
        name: str | None = None,
    ):
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.contract = Contract(contract)
        self.timeout = timeout
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments, self.wants_key = _arguments_of(function, self.name)
        self.schema: dict[str, object] = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": inspect.getdoc(function) or "",
                "parameters": _json_schema(self._arguments),
            },
        }

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def call(self, **arguments: object) -> ToolCall:
        """A call by the rollout itself rather than by the model."""
        return ToolCall("", FunctionCall(self.name, json.dumps(arguments)))

    def bind(self, arguments: str) -> dict[str, object]:
        """The validated arguments, or `InvalidArguments` with words for the model."""
        try:
            bound = msgspec.json.decode(arguments or "{}", type=self._arguments)
        except msgspec.MsgspecError as error:
            raise InvalidArguments(f"invalid arguments for {self.name}: {error}") from error
        return {field: getattr(bound, field) for field in self._arguments.__struct_fields__}


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *, contract: Contract | str = ..., timeout: float = ..., name: str | None = ...
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    contract: Contract | str = Contract.AT_MOST_ONCE,
    timeout: float = DEFAULT_TIMEOUT,
    name: str | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Makes a tool: `@tool`, or `@tool(contract="idempotent", timeout=30)`."""

    def make(function: Function) -> Tool:
        return Tool(function, contract=contract, timeout=timeout, name=name)

    return make if function is None else make(function)


def as_tool(candidate: "Tool | Function") -> Tool:
    return candidate if isinstance(candidate, Tool) else Tool(candidate)


def schemas_of(
    tools: "Sequence[Tool | Function | dict[str, object]]",
) -> tuple[dict[str, object], ...]:
    """What is shown to the model, from tools, plain functions or ready-made schemas."""
    return tuple(one if isinstance(one, dict) else as_tool(one).schema for one in tools)


def _arguments_of(function: Function, name: str) -> tuple[type[msgspec.Struct], bool]:
    # A callable object has its hints on its class.
    hints = get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    fields: list[Any] = []
    wants_key = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == KEY_PARAMETER:
            wants_key = True
            continue
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise UsageError(f"tool {name}: *{parameter.name} cannot be shown to a model")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(f"tool {name}: {parameter.name} cannot be given by name")
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    struct = msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)
    return struct, wants_key


def _json_schema(struct: type[msgspec.Struct]) -> dict[str, object]:
    (schema,), components = msgspec.json.schema_components([struct])
    flat = components.pop(struct.__name__, schema)
    flat.pop("title", None)
    if components:
        flat["$defs"] = components
    return dict(flat)


def result_text(value: object) -> str:
    """What the model sees of a tool's return value: always text that can be recorded."""
    text = _text(value).encode("utf-8", "backslashreplace")
    if len(text) > MAX_RESULT:
        # A record that no journal takes would stop the run, not this trajectory.
        raise ValueError(f"it returned {len(text):,} bytes; the limit is {MAX_RESULT:,}")
    return text.decode()


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return msgspec.json.encode(value, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(value)
