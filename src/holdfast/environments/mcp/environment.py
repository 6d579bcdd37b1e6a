"""McpEnvironment: an MCP server in one trajectory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.environments.mcp.listing import McpTool
from holdfast.environments.mcp.session import GOODBYE, McpSession
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo
from holdfast.rollout.episodes.environment import Environment, Observation, Seen
from holdfast.rollout.tools.tool import Function, Tool

if TYPE_CHECKING:
    from holdfast.environments.mcp.server import McpServer


class Action(msgspec.Struct, frozen=True):
    """What `step` takes: `{"name": "add", "arguments": {"a": 1}}`."""

    name: str
    arguments: dict[str, object] = {}


class McpEnvironment(Environment):
    """Made by `McpServer.environment()`. Its tools are the server's.

    The first observation is empty; what the server says about itself is in its
    `info["instructions"]`.
    """

    def __init__(self, server: "McpServer"):
        self.recovery = server.recovery
        self.earns = False
        # A session may have to be ended, and another begun, before a call is answered.
        self.timeout = 2 * server.timeout + 2 * GOODBYE
        self._server = server
        self._session: McpSession | None = None
        self._holds = False

    @property
    def name(self) -> str:
        """Says nothing of where the server is: that may change while a trajectory lives."""
        prefix = self._server.prefix
        return f"McpServer({prefix})" if prefix else "McpServer"

    @property
    def identity(self) -> str:
        return self._server.identity

    async def prepare(self) -> None:
        """Lists the server's tools, if nobody did: they have to be known before `tools`."""
        await self._server.tools()

    @property
    def tools(self) -> Sequence[Tool]:
        return [self._made(one) for one in self._server.listed]

    async def reset(self, *, seed: int) -> Seen:
        await self.close()
        if self._server.shared:
            await self._server.hold()
            self._holds = True
        else:
            self._session = await self._server.begin(seed)
        session = await self._current()
        info = {"instructions": session.instructions} if session.instructions else {}
        return Observation("", info=info)

    async def step(self, action: str) -> Seen:
        try:
            asked = msgspec.json.decode(action, type=Action)
        except msgspec.MsgspecError as error:
            raise ToolSaysNo(
                f'an action is {{"name": "…", "arguments": {{…}}}}, in JSON: {error}'
            ) from error
        tool = next((one for one in self._server.listed if one.name == asked.name), None)
        if tool is None:
            names = ", ".join(one.name for one in self._server.listed)
            raise ToolSaysNo(f"there is no tool {asked.name!r}; the tools are: {names}")
        return await self._call(tool, asked.arguments)

    async def close(self) -> None:
        session, self._session = self._session, None
        holds, self._holds = self._holds, False
        if session is not None:
            await session.close()
        if holds:
            await self._server.release()

    def _made(self, tool: McpTool) -> Tool:
        return Tool.from_schema(
            tool.name,
            tool.description,
            tool.parameters,
            self._function(tool),
            contract=tool.contract,
            timeout=self.timeout,
        )

    def _function(self, tool: McpTool) -> Function:
        async def call(**arguments: object) -> str:
            return await self._call(tool, arguments)

        return call

    async def _call(self, tool: McpTool, arguments: dict[str, object]) -> str:
        return await (await self._current()).call(tool.remote, arguments)

    async def _current(self) -> McpSession:
        if self._holds:
            return await self._server.shared_session()
        if self._session is None:
            raise EnvironmentBroken(f"the session of MCP {self._server.described} is not open")
        return self._session
