"""Structure: constrains a reply to tool calls in the markup of its model's family.

Engines (vLLM, SGLang) take the structure as a structural tag. This JSON says which texts may be
sampled and includes the schema of each tool's arguments. The sampled text has the family's own
markup for calls and is parsed like any other reply.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.records.errors import Unsupported
from holdfast.records.sampling import NAMED, Sampling

Ids = Sequence[int]
Tools = Sequence[dict[str, object]]


class Marks(msgspec.Struct, frozen=True):
    """The markup of one call, around the JSON of its arguments."""

    trigger: str
    """Text that begins every call and never appears in a reply without calls."""
    before: str
    after: str
    between: str = ""
    """The text between two calls of one reply."""


@runtime_checkable
class MarksCalls(Protocol):
    """A renderer of a model that can be forced to call tools."""

    def call_marks(self, name: str) -> Marks | None:
        """Returns the marks around a call of this tool. Returns None if the family writes arguments
        in another way."""
        ...


def hermes_marks(name: str, *, space: str = "\n") -> Marks:
    """Returns the marks of calls that are JSON between `<tool_call>` and `</tool_call>`."""
    opening = f'<tool_call>{space}{{"name": {msgspec.json.encode(name).decode()}, '
    return Marks("<tool_call>", f'{opening}"arguments": ', f"}}{space}</tool_call>", space)


def structure_of(renderer: object, sampling: Sampling, tools: Tools) -> str:
    """Returns the structure that the reply must have, or "" if the reply is free. Raises
    `Unsupported` if the structure cannot be built."""
    forced = bool(sampling.tool_choice)
    if not forced and (sampling.parallel_tool_calls or not tools):
        return ""
    what = "tool_choice" if forced else "parallel_tool_calls"
    functions = [_function(tool) for tool in tools]
    chosen = [function for function in functions if sampling.forced_tool in ("", function["name"])]
    if not chosen:
        named = sampling.tool_choice.removeprefix(NAMED)
        raise Unsupported(what, f"there is no tool {named!r} to be called" if tools else "no tools")
    results = [
        (renderer.call_marks(str(item["name"])) if isinstance(renderer, MarksCalls) else None, item)
        for item in chosen
    ]
    tags = [_tag(marks, entry) for marks, entry in results if marks is not None]
    if len(tags) < len(results):
        name = getattr(renderer, "name", "this renderer")
        raise Unsupported(what, f"calls as {name} writes them cannot be kept to a schema")
    first = results[0][0]
    assert first is not None, "each of them has marks"
    kind: dict[str, object] = {"type": "triggered_tags", "triggers": [first.trigger]}
    if forced:
        kind = {"type": "tags_with_separator", "separator": first.between}
    once = bool(sampling.forced_tool) or not sampling.parallel_tool_calls
    limits = {"at_least_one": forced, "stop_after_first": once}
    whole = {"type": "structural_tag", "format": {**kind, "tags": tags, **limits}}
    return msgspec.json.encode(whole).decode()


def _function(tool: dict[str, object]) -> dict[str, object]:
    function = tool["function"]
    assert isinstance(function, dict), "tools are as chat completions have them"
    return function


def _tag(marks: Marks, function: dict[str, object]) -> dict[str, object]:
    schema = function.get("parameters") or {"type": "object"}
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": marks.before, "content": content, "end": marks.after}
