"""Anthropic's tool definitions as the schemas that templates render.

Only tools that the client runs itself. Tools that the provider runs (web search, code execution) or
defines (computer, bash, text editor), and `strict`, are rejected by name.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.gateway.wires.anthropic.errors import from_decode_error, invalid, unsupported
from holdfast.gateway.wires.anthropic.request import CountRequest
from holdfast.records.sampling import NAMED, REQUIRED

_MAX_DEPTH = 64
_INTEGERS = range(-(2**63), 2**64)


class AnthropicTool(Struct, forbid_unknown_fields=True, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, object]
    description: str | None = None
    type: str | None = None
    cache_control: object = None
    eager_input_streaming: object = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    input_examples: list[object] | None = None
    strict: bool | None = None


def tool_schemas(request: CountRequest) -> tuple[dict[str, object], ...]:
    """The tools in the format of chat completions; none if the model may not call any."""
    found = tuple(
        _schema(tool, f"tools.{number}") for number, tool in enumerate(request.tools or ())
    )
    names = [tool["name"] for tool in request.tools or ()]
    if len(set(names)) != len(names):
        raise invalid("tools", "Tool names must be unique.")
    return () if (request.tool_choice or {}).get("type") == "none" else found


def forced_tool(request: CountRequest) -> str:
    """The value for `Sampling.tool_choice`. Raises `RequestRejected`."""
    choice = request.tool_choice or {}
    kind, name = choice.get("type", "auto"), choice.get("name")
    if kind in ("auto", "none"):
        return ""
    if kind == "any" and request.tools:
        return REQUIRED
    if kind == "tool" and name in [tool["name"] for tool in request.tools or ()]:
        return f"{NAMED}{name}"
    if kind in ("any", "tool"):
        raise invalid("tool_choice", "there is no such tool in `tools`")
    raise unsupported("tool_choice.type", 'use "auto", "any", "tool" or "none"')


def is_parallel(request: CountRequest) -> bool:
    """Whether a reply may make several calls."""
    return (request.tool_choice or {}).get("disable_parallel_tool_use") in (None, False)


def _schema(sent: dict[str, object], where: str) -> dict[str, object]:
    kind = sent.get("type")
    if kind not in (None, "custom"):
        raise unsupported(f"{where}.type", f"{kind!r} is no tool that the client runs")
    try:
        tool = msgspec.convert(sent, AnthropicTool)
    except msgspec.ValidationError as error:
        raise from_decode_error(error, under=where) from error
    _check(tool, where)
    _check_bounds(tool.input_schema, f"{where}.input_schema")
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    return {"type": "function", "function": function}


def _check(tool: AnthropicTool, where: str) -> None:
    unsupported_fields = {
        "strict": tool.strict,
        "defer_loading": tool.defer_loading,
        "input_examples": tool.input_examples,
        "allowed_callers": tool.allowed_callers not in (None, ["direct"]),
    }
    for name, is_set in unsupported_fields.items():
        if is_set:
            raise unsupported(f"{where}.{name}")


def _check_bounds(value: object, where: str, depth: int = 0) -> None:
    """A schema is recorded and rendered: it must not be deep, and its numbers must be storable."""
    if depth > _MAX_DEPTH:
        raise invalid(where, f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_bounds(item, where, depth + 1)
    elif type(value) is int and value not in _INTEGERS:
        raise invalid(where, "an integer needs more than 64 bits")
