"""McpServer: describes one MCP server for many trajectories, and creates the environment of each.

Creating an `McpServer` starts nothing. Each environment has its own session, or all share one
session. The list of tools is requested once.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import TypedDict, Unpack
from weakref import WeakKeyDictionary

import msgspec

from holdfast.environments.mcp.connection import Connection, Http, Stdio
from holdfast.environments.mcp.listing import Contracts, McpTool, ToolChoice, parse_contracts
from holdfast.environments.mcp.session import CLOSE_SECONDS, McpSession, SharedSession, Single
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery, Seen
from holdfast.rollout.tools.tool import Tool


class Action(msgspec.Struct, frozen=True):
    """An action for `step`, such as `{"name": "add", "arguments": {"a": 1}}`."""

    name: str
    arguments: dict[str, object] = {}


class McpEnvironment(Environment):
    """An MCP server as the environment of one trajectory, created by `McpServer.environment()`. Its
    tools are those of the server.

    The first observation is empty. The server's instructions are in `info["instructions"]`.
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
        """The name of the environment, without the server's address, which may change during a
        trajectory."""
        prefix = self._server.prefix
        return f"McpServer({prefix})" if prefix else "McpServer"

    @property
    def identity(self) -> str:
        return self._server.identity

    async def prepare(self) -> None:
        """Requests the list of the server's tools, from which `tools` is made. The server is asked
        only once."""
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


DEFAULT_TIMEOUT = 60.0


class McpOptions(TypedDict, total=False):
    """Options that servers of both kinds have."""

    recovery: Recovery | str
    """How a trajectory's session recovers: "stateless" (the default), "replay" or "restart"."""
    shared: bool
    """Whether all trajectories share one session. Use this only for stateless servers."""
    timeout: float
    """The most seconds for opening a session, and for each call."""
    tools: Sequence[str] | None
    """The tools that the model gets, by the server's names. None means all tools."""
    prefix: str
    """A text that is put before each tool's name, so that the tools of two servers have different
    names."""
    contract: Contracts
    """What to do with an interrupted call, instead of what the server's hints say. Either one
    contract for all tools, or a mapping from the server's tool names to contracts."""


class McpServer:
    """An MCP server, created by `stdio` or `http`. A trajectory uses `environment()`.

    A shared session stays open as long as an environment is open, and from `open` to `aclose` (or
    within `async with server:`).
    """

    def __init__(self, connection: Connection, **options: Unpack[McpOptions]):
        _check_known(options)
        self.recovery = _recovery(options.get("recovery", Recovery.STATELESS))
        self.shared = options.get("shared", False)
        self.timeout = options.get("timeout", DEFAULT_TIMEOUT)
        self.prefix = options.get("prefix", "")
        allowed = options.get("tools")
        self._choice = ToolChoice(
            None if allowed is None else _tool_names(allowed),
            self.prefix,
            parse_contracts(options.get("contract")),
        )
        self._is_kept = False
        self._connection = connection
        # Only a session that began with a handshake has state.
        self._handshake = self.recovery is not Recovery.STATELESS
        self._tools: tuple[McpTool, ...] | None = None
        # Locks and sessions belong to one event loop.
        self._listing: WeakKeyDictionary[asyncio.AbstractEventLoop, Single] = WeakKeyDictionary()
        self._sharing: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedSession] = (
            WeakKeyDictionary()
        )
        if self.shared and self.recovery is not Recovery.STATELESS:
            raise UsageError(
                f"{self.described}: a session that trajectories share has no state of theirs to "
                "bring back: use shared=False, or recovery='stateless'"
            )
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise UsageError(f"{self.described}: `timeout` is {self.timeout}; give seconds, > 0")

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        **options: Unpack[McpOptions],
    ) -> "McpServer":
        """Describes a server that is started as a process and uses its standard input and output.

        The process gets the variables in `env` and the few that every program needs (PATH, HOME,
        …), not all variables of this process. If the session is not shared, it also gets
        HOLDFAST_SEED, the trajectory's seed.
        """
        _check_known(options, "env", "cwd")
        _check_strings(command, *args)
        folder = None if cwd is None else fspath(cwd)
        return cls(Stdio(command, args, dict(env or {}), folder), **options)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        **options: Unpack[McpOptions],
    ) -> "McpServer":
        """Describes a server behind streamable HTTP. `token` is sent as a bearer token."""
        _check_known(options, "headers", "token")
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        return cls(Http(url, {**(headers or {}), **bearer}), **options)

    @property
    def described(self) -> str:
        """The command or the URL, without secrets."""
        return self._connection.described

    @property
    def identity(self) -> str:
        return self._connection.identity

    def __repr__(self) -> str:
        return f"<McpServer {self.described}>"

    # --- for a rollout

    async def tools(self) -> tuple[McpTool, ...]:
        """Returns the server's tools, which are requested only once. Raises an error if the server
        cannot be used."""
        if self._tools is None:
            single = self._listing.setdefault(asyncio.get_running_loop(), Single())
            await single.run(self._list)
        return self.listed

    @property
    def listed(self) -> tuple[McpTool, ...]:
        if self._tools is None:
            raise UsageError(
                f"the tools of MCP server {self.described} are not known yet: call "
                "`await server.tools()` first, in the processor's `setup` or in the rollout"
            )
        return self._tools

    def environment(self) -> McpEnvironment:
        """Returns the server's environment for one trajectory: `episode = await
        t.env(server.environment())`.
        """
        return McpEnvironment(self)

    async def open(self) -> None:
        """Requests the list of tools. Also opens the session if it is shared, and keeps it open
        until `aclose`."""
        if self.shared and not self._is_kept:
            await self.shared_session().hold()
            self._is_kept = True
        await self.tools()

    async def aclose(self) -> None:
        """Releases the shared session that `open` opened. The session closes when no environment
        uses it any more."""
        if self._is_kept:
            self._is_kept = False
            await self.shared_session().release()

    async def __aenter__(self) -> "McpServer":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- for its environments

    async def begin(self, seed: int | None = None) -> McpSession:
        """Begins a new session. Raises `EnvironmentBroken` if the server lacks a tool that it
        listed before."""
        session = await McpSession.open(
            self._connection,
            timeout=self.timeout,
            handshake=self._handshake,
            seed=seed,
        )
        try:
            self._check(session)
        except BaseException:
            await session.close()
            raise
        return session

    def shared_session(self) -> SharedSession:
        """Returns the shared session of this event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._sharing:
            self._sharing[loop] = SharedSession(self.begin)
        return self._sharing[loop]

    async def _list(self) -> None:
        if self._tools is None:
            await (await self.begin()).close()

    def _check(self, session: McpSession) -> None:
        # The first attempt without a handshake may take long, so it is made only once.
        self._handshake = self._handshake or session.began_with_handshake
        chosen = self._choice.of(session.tools)
        if self._tools is None:
            self._tools = chosen
        gone = {tool.name for tool in self._tools} - {tool.name for tool in chosen}
        if gone:
            raise EnvironmentBroken(
                f"MCP server {self.described} no longer has {', '.join(sorted(gone))}"
            )


def _check_known(options: Iterable[str], *more: str) -> None:
    known = (*McpOptions.__annotations__, *more)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(
            f"McpServer has no option {', '.join(unknown)}; its options are {', '.join(known)}"
        )


def _check_strings(*arguments: object) -> None:
    # The message contains only types, because the values may be secrets.
    wrong = [type(value).__name__ for value in arguments if not isinstance(value, str)]
    if wrong:
        raise UsageError(
            "McpServer.stdio takes the command and each of its arguments as a string, as in "
            f"McpServer.stdio('python', 'server.py'); it was given a {wrong[0]}"
        )


def _recovery(level: Recovery | str) -> Recovery:
    levels = [known for known in Recovery if known is not Recovery.SNAPSHOT]
    if level not in levels:
        reason = " (the protocol has no snapshots)" if level == Recovery.SNAPSHOT else ""
        raise UsageError(
            f"an MCP server cannot recover by {level!r}{reason}; choose one of {', '.join(levels)}"
        )
    return Recovery(level)


def _tool_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UsageError(f"`tools` is a list of names, not one string: [{names!r}]")
    return tuple(names)
