"""The tool that a request forces, as OpenAI's requests name it."""

from collections.abc import Sequence

from holdfast.gateway.protocol.messages import shorten
from holdfast.gateway.wires.openai.errors import invalid, unsupported_value
from holdfast.records.sampling import NAMED, REQUIRED

Tools = Sequence[dict[str, object]]


def parse_tool_choice(choice: str | dict[str, object] | None, tools: Tools) -> str | None:
    """The value for `Sampling.tool_choice`; None if the model must call no tool (its prompt then
    has none). For chat completions and responses. Raises `RequestRejected`."""
    if choice in (None, "auto"):
        return ""
    if choice == "none":
        return None
    if choice == REQUIRED:
        if not tools:
            raise invalid(
                "'tool_choice' is 'required', and there are no tools.", param="tool_choice"
            )
        return REQUIRED
    name = _function(choice) if isinstance(choice, dict) else None
    if name is None:
        why = "send 'auto', 'none', 'required' or a function."
        raise unsupported_value("tool_choice", choice, why)
    if name not in tool_names(tools):
        text = f"Tool choice '{shorten(name)}' not found in 'tools'."
        raise invalid(text, param="tool_choice")
    return NAMED + name


def tool_names(tools: Tools) -> list[object]:
    functions = (tool["function"] for tool in tools)
    return [function["name"] for function in functions if isinstance(function, dict)]


def _function(choice: dict[str, object]) -> str | None:
    if choice.get("type") != "function":
        return None
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) and name else None
