"""The tools of an MCP server, as they are shown to a model and called."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.step import Contract

if TYPE_CHECKING:
    import mcp_types
    from mcp.client import Client

Contracts = Contract | str | Mapping[str, Contract | str] | None
MAX_PAGES = 1_000
LONGEST_NAME = 64
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class McpTool(Struct, frozen=True):
    """One tool, with the schema that its server gave it."""

    name: str
    """What the model calls it: the server's name for it, after the prefix, in the letters, digits,
    `_` and `-` that chat templates take."""
    remote: str
    """What its server calls it."""
    description: str
    parameters: Mapping[str, object]
    """The JSON schema of its arguments."""
    contract: Contract


class ToolChoice(Struct, frozen=True):
    """Which of a server's tools are shown, under which names and contracts."""

    allowed: tuple[str, ...] | None = None
    prefix: str = ""
    contract: Contract | Mapping[str, Contract] | None = None

    def of(self, listed: "Sequence[mcp_types.Tool]") -> tuple[McpTool, ...]:
        names = [tool.name for tool in listed]
        self._check(names)
        wanted = names if self.allowed is None else self.allowed
        made = tuple(self._made(tool) for tool in listed if tool.name in wanted)
        _check_distinct(made)
        return made

    def _check(self, names: Sequence[str]) -> None:
        overridden = self.contract if isinstance(self.contract, Mapping) else ()
        for option, asked in (("tools", self.allowed or ()), ("contract", overridden)):
            unknown = [name for name in asked if name not in names]
            if unknown:
                raise UsageError(
                    f"`{option}` names {', '.join(unknown)}, which the MCP server does not have; "
                    f"it has {', '.join(names) or 'no tools'}"
                )

    def _made(self, tool: "mcp_types.Tool") -> McpTool:
        return McpTool(
            name=_ODD.sub("_", self.prefix + tool.name)[:LONGEST_NAME],
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
        again = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
        return Contract.IDEMPOTENT if again else Contract.AT_MOST_ONCE


def _check_distinct(tools: Sequence[McpTool]) -> None:
    seen: dict[str, str] = {}
    for tool in tools:
        other = seen.setdefault(tool.name, tool.remote)
        if other != tool.remote:
            raise UsageError(
                f"the MCP server's tools {other} and {tool.remote} would both be called "
                f"{tool.name}: leave one of them out with `tools`"
            )


def contracts_of(given: Contracts) -> Contract | dict[str, Contract] | None:
    """The `contract` option, checked."""
    if given is None:
        return None
    try:
        if isinstance(given, Mapping):
            return {name: Contract(one) for name, one in given.items()}
        return Contract(given)
    except ValueError as error:
        raise UsageError(f"`contract`: {error}; there are {', '.join(Contract)}") from None


async def listed(client: "Client") -> "tuple[mcp_types.Tool, ...]":
    """All tools, over all pages."""
    found: dict[str, mcp_types.Tool] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if tool.name in found:
                raise EnvironmentBroken(f"it lists two tools called {tool.name}")
            found[tool.name] = tool
        cursor = page.next_cursor
        if cursor is None:
            return tuple(found.values())
    raise EnvironmentBroken(f"its list of tools has no end: {MAX_PAGES} pages and more")
