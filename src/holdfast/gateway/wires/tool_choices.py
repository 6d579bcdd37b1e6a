"""Which tool a request wants called, in any provider's words."""

from collections.abc import Sequence

from holdfast.gateway.protocol.messages import shorten
from holdfast.gateway.wires.openai.errors import unsupported_value, wrong
from holdfast.records.sampling import NAMED, REQUIRED

Tools = Sequence[dict[str, object]]


def tool_choice(choice: str | dict[str, object] | None, tools: Tools) -> str | None:
    """As `Sampling` has it; None where no tool is to be called: the model is shown none then.

    OpenAI's, of chat completions and of responses."""
    if choice in (None, "auto"):
        return ""
    if choice == "none":
        return None
    if choice == REQUIRED:
        if not tools:
            raise wrong("'tool_choice' is 'required', and there are no tools.", param="tool_choice")
        return REQUIRED
    name = _function(choice) if isinstance(choice, dict) else None
    if name is None:
        why = "send 'auto', 'none', 'required' or a function."
        raise unsupported_value("tool_choice", choice, why)
    if name not in names_of(tools):
        said = f"Tool choice '{shorten(name)}' not found in 'tools'."
        raise wrong(said, param="tool_choice")
    return NAMED + name


def names_of(tools: Tools) -> list[object]:
    functions = (tool["function"] for tool in tools)
    return [function["name"] for function in functions if isinstance(function, dict)]


def _function(choice: dict[str, object]) -> str | None:
    if choice.get("type") != "function":
        return None
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) and name else None
