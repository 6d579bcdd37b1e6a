"""McpEnvironment: an MCP server in one trajectory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.environments.mcp.listing import McpTool
from holdfast.environments.mcp.session import CLOSE_SECONDS, McpSession
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo
from holdfast.rollout.episodes.environment import Environment, Observation, Seen
from holdfast.rollout.tools.tool import Tool

if TYPE_CHECKING:
    from holdfast.environments.mcp.server import McpServer


class Action(msgspec.Struct, frozen=True):
    """An action for `step`: `{"name": "add", "arguments": {"a": 1}}`."""

    name: str
    arguments: dict[str, object] = {}


class McpEnvironment(Environment):
    """Created by `McpServer.environment()`. Its tools are the server's.

    The first observation is empty; the server's instructions are in `info["instructions"]`.
    """

    def __init__(self, server: "McpServer"):
        self.recovery = server.recovery
        self.earns = False
        # A call may have to end one session and begin another first.
        self.timeout = 2 * server.timeout + 2 * CLOSE_SECONDS
        self._server = server
        self._session: McpSession | None = None
        self._holds_shared = False

    @property
    def name(self) -> str:
        """Without the server's address, which may change during a trajectory."""
        prefix = self._server.prefix
        return f"McpServer({prefix})" if prefix else "McpServer"

    @property
    def identity(self) -> str:
        return self._server.identity

    async def prepare(self) -> None:
        """Lists the server's tools, once; `tools` needs them."""
        await self._server.tools()

    @property
    def tools(self) -> Sequence[Tool]:
        return [self._tool(tool) for tool in self._server.listed]

    async def reset(self, *, seed: int) -> Seen:
        await self.close()
        if self._server.shared:
            await self._server.shared_session().hold()
            self._holds_shared = True
        else:
            self._session = await self._server.begin(seed)
        session = await self._current()
        info = {"instructions": session.instructions} if session.instructions else {}
        return Observation("", info=info)

    async def step(self, action: str) -> Seen:
        try:
            parsed = msgspec.json.decode(action, type=Action)
        except msgspec.MsgspecError as error:
            raise ToolSaysNo(
                f'an action is {{"name": "…", "arguments": {{…}}}}, in JSON: {error}'
            ) from error
        tools = {tool.name: tool for tool in self._server.listed}
        if parsed.name not in tools:
            names = ", ".join(tools)
            raise ToolSaysNo(f"there is no tool {parsed.name!r}; the tools are: {names}")
        return await self._call(tools[parsed.name], parsed.arguments)

    async def close(self) -> None:
        session, self._session = self._session, None
        holds_shared, self._holds_shared = self._holds_shared, False
        if session is not None:
            await session.close()
        if holds_shared:
            await self._server.shared_session().release()

    def _tool(self, tool: McpTool) -> Tool:
        async def call(**arguments: object) -> str:
            return await self._call(tool, arguments)

        return Tool.from_schema(
            tool.name,
            tool.description,
            tool.parameters,
            call,
            contract=tool.contract,
            timeout=self.timeout,
        )

    async def _call(self, tool: McpTool, arguments: dict[str, object]) -> str:
        return await (await self._current()).call(tool.remote, arguments)

    async def _current(self) -> McpSession:
        if self._holds_shared:
            return await self._server.shared_session().session()
        if self._session is None:
            raise EnvironmentBroken(f"the session of MCP {self._server.described} is not open")
        return self._session
