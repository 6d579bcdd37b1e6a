"""Lists the tools of an MCP server, chooses and names them, sets their contracts, and converts
their results to text."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.step import Contract

if TYPE_CHECKING:
    import mcp_types
    from mcp.client import Client
    from mcp_types import BlobResourceContents, CallToolResult, ContentBlock

Contracts = Contract | str | Mapping[str, Contract | str] | None
MAX_PAGES = 1_000
MAX_NAME = 64
_INVALID = re.compile(r"[^A-Za-z0-9_-]")


class McpTool(Struct, frozen=True):
    """A tool of an MCP server."""

    name: str
    """The name that the model sees: the prefix and the server's name for the tool. Other characters
    than letters, digits, `_` and `-` are replaced, because chat templates do not accept them."""
    remote: str
    """The name that the server uses for the tool."""
    description: str
    parameters: Mapping[str, object]
    """The JSON schema of the tool's arguments."""
    contract: Contract


class ToolChoice(Struct, frozen=True):
    """The tools of a server that the model gets, with their names and contracts."""

    allowed: tuple[str, ...] | None = None
    prefix: str = ""
    contract: Contract | Mapping[str, Contract] | None = None

    def of(self, listed: "Sequence[mcp_types.Tool]") -> tuple[McpTool, ...]:
        names = [tool.name for tool in listed]
        self._check(names)
        allowed = names if self.allowed is None else self.allowed
        tools = tuple(self._tool(tool) for tool in listed if tool.name in allowed)
        _check_distinct(tools)
        return tools

    def _check(self, names: Sequence[str]) -> None:
        overridden = self.contract if isinstance(self.contract, Mapping) else ()
        for option, named in (("tools", self.allowed or ()), ("contract", overridden)):
            unknown = [name for name in named if name not in names]
            if unknown:
                raise UsageError(
                    f"`{option}` names {', '.join(unknown)}, which the MCP server does not have; "
                    f"it has {', '.join(names) or 'no tools'}"
                )

    def _tool(self, tool: "mcp_types.Tool") -> McpTool:
        return McpTool(
            name=_INVALID.sub("_", self.prefix + tool.name)[:MAX_NAME],
            remote=tool.name,
            description=tool.description or tool.title or "",
            parameters=tool.input_schema,
            contract=self._contract(tool),
        )

    def _contract(self, tool: "mcp_types.Tool") -> Contract:
        match self.contract:
            case Contract():
                return self.contract
            case Mapping() if tool.name in self.contract:
                return self.contract[tool.name]
        hints = tool.annotations
        is_repeatable = hints is not None and (hints.read_only_hint or hints.idempotent_hint)
        return Contract.IDEMPOTENT if is_repeatable else Contract.AT_MOST_ONCE


def _check_distinct(tools: Sequence[McpTool]) -> None:
    seen: dict[str, str] = {}
    for tool in tools:
        other = seen.setdefault(tool.name, tool.remote)
        if other != tool.remote:
            raise UsageError(
                f"the MCP server's tools {other} and {tool.remote} would both be called "
                f"{tool.name}: leave one of them out with `tools`"
            )


def parse_contracts(option: Contracts) -> Contract | dict[str, Contract] | None:
    """Checks the `contract` option. Raises `UsageError`."""
    if option is None:
        return None
    try:
        if isinstance(option, Mapping):
            return {name: Contract(contract) for name, contract in option.items()}
        return Contract(option)
    except ValueError as error:
        raise UsageError(f"`contract`: {error}; there are {', '.join(Contract)}") from None


async def list_tools(client: "Client") -> "tuple[mcp_types.Tool, ...]":
    """Returns the tools from all pages of the server's list."""
    tools: dict[str, mcp_types.Tool] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if tool.name in tools:
                raise EnvironmentBroken(f"it lists two tools called {tool.name}")
            tools[tool.name] = tool
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools.values())
    raise EnvironmentBroken(f"its list of tools has no end: {MAX_PAGES} pages and more")


def text_of(result: "CallToolResult") -> str:
    """Returns the texts of a result, one per line. A block that is not text becomes a placeholder.

    If there is no text, the structured content is added as JSON.
    """
    texts = [_text(block) for block in result.content]
    lines = [
        _placeholder(block) if text is None else text
        for block, text in zip(result.content, texts, strict=True)
    ]
    if result.structured_content is not None and all(text is None for text in texts):
        lines.append(msgspec.json.encode(result.structured_content).decode())
    return "\n".join(lines)


def _text(block: "ContentBlock") -> str | None:
    if block.type == "text":
        return block.text
    if block.type == "resource":
        return getattr(block.resource, "text", None)
    return None


def _placeholder(block: "ContentBlock") -> str:
    match block.type:
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]"
        case "resource_link":
            size = "" if block.size is None else f", {block.size} bytes"
            return f"[resource: {block.uri}, {block.mime_type or 'unknown type'}{size}]"
        case "resource":
            resource: BlobResourceContents = block.resource  # type: ignore[assignment]
            kind = resource.mime_type or "unknown type"
            return f"[resource: {resource.uri}, {kind}, {_size(resource.blob)} bytes]"
        case _:
            return f"[{block.type}]"


def _size(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
