"""McpServer: the description of one MCP server, made once and used by many trajectories.

Making one starts nothing. Sessions belong to environments, or are shared between them; the list of
tools is asked for once and kept.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import TypedDict, Unpack
from weakref import WeakKeyDictionary

from holdfast.environments.mcp.connection import Connection, Http, Stdio
from holdfast.environments.mcp.environment import McpEnvironment
from holdfast.environments.mcp.listing import Contracts, McpTool, ToolChoice, contracts_of
from holdfast.environments.mcp.session import McpSession
from holdfast.environments.mcp.shared import SharedSession, Single
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.rollout.episodes.environment import Recovery

DEFAULT_TIMEOUT = 60.0


class McpOptions(TypedDict, total=False):
    """What all servers have in common."""

    recovery: Recovery | str
    """How a trajectory's session comes back: "stateless" (the default), "replay" or "restart"."""
    shared: bool
    """One session for all trajectories, instead of one for each; for stateless servers only."""
    timeout: float
    """Seconds for the beginning of a session, and for each call."""
    tools: Sequence[str] | None
    """The tools that are shown to the model, by the server's names; None: all of them."""
    prefix: str
    """Put before each tool's name, so that the tools of two servers differ."""
    contract: Contracts
    """Overrides what the server's hints say about interrupted calls: one contract for all tools,
    or one by (the server's) name."""


class McpServer:
    """Made by `stdio` or `http`. `environment()` is what a trajectory uses.

    A shared session is open while an environment is, or from `open` to `aclose` (or within
    `async with server:`).
    """

    def __init__(self, connection: Connection, **options: Unpack[McpOptions]):
        _check_known(options)
        self.recovery = _recovery(options.get("recovery", Recovery.STATELESS))
        self.shared = options.get("shared", False)
        self.timeout = options.get("timeout", DEFAULT_TIMEOUT)
        self.prefix = options.get("prefix", "")
        allowed = options.get("tools")
        self._choice = ToolChoice(
            None if allowed is None else _names(allowed),
            self.prefix,
            contracts_of(options.get("contract")),
        )
        self._is_kept = False
        self._connection = connection
        # Only a session that begins with a handshake has a state of its own.
        self._handshake = self.recovery is not Recovery.STATELESS
        self._tools: tuple[McpTool, ...] | None = None
        # Locks and sessions belong to the event loop that they were made in.
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
        """A server that is started, and spoken to over its standard input and output.

        It gets `env` and the few variables that every program needs (PATH, HOME, …), not all of
        this process's; and, where the session is a trajectory's own, its seed as HOLDFAST_SEED.
        """
        _check_known(options, "env", "cwd")
        _check_words(command, *args)
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
        """A server that is reached by streamable HTTP. `token` is sent as a bearer token."""
        _check_known(options, "headers", "token")
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        return cls(Http(url, sent), **options)

    @property
    def described(self) -> str:
        """The command or the URL, without secrets."""
        return self._connection.described

    @property
    def identity(self) -> str:
        return self._connection.identity

    def __repr__(self) -> str:
        return f"<McpServer {self.described}>"

    # --- what a rollout uses

    async def tools(self) -> tuple[McpTool, ...]:
        """The server's tools; asked for once. Raises what says why the server cannot be used."""
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
        """The server in one trajectory: `episode = await t.env(server.environment())`."""
        return McpEnvironment(self)

    async def open(self) -> None:
        """Lists the tools; a shared session then stays open until `aclose`."""
        if self.shared and not self._is_kept:
            await self.hold()
            self._is_kept = True
        await self.tools()

    async def aclose(self) -> None:
        """Does nothing if it is not open."""
        if self._is_kept:
            self._is_kept = False
            await self.release()

    async def __aenter__(self) -> "McpServer":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- what its environments use

    async def begin(self, seed: int | None = None) -> McpSession:
        """A new session, with all tools that were promised."""
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

    async def hold(self) -> None:
        await self._here().hold()

    async def release(self) -> None:
        await self._here().release()

    async def shared_session(self) -> McpSession:
        return await self._here().session()

    def _here(self) -> SharedSession:
        loop = asyncio.get_running_loop()
        if loop not in self._sharing:
            self._sharing[loop] = SharedSession(self.begin)
        return self._sharing[loop]

    async def _list(self) -> None:
        if self._tools is None:
            await (await self.begin()).close()

    def _check(self, session: McpSession) -> None:
        # Servers that know nothing else may be slow to say so: they are asked once.
        self._handshake = self._handshake or session.began_with_handshake
        found = self._choice.of(session.tools)
        if self._tools is None:
            self._tools = found
        gone = {one.name for one in self._tools} - {one.name for one in found}
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


def _check_words(*words: object) -> None:
    # Not shown: there may be secrets among them.
    strange = [type(one).__name__ for one in words if not isinstance(one, str)]
    if strange:
        raise UsageError(
            "McpServer.stdio takes the command and each of its arguments as a string, as in "
            f"McpServer.stdio('python', 'server.py'); it was given a {strange[0]}"
        )


def _recovery(given: Recovery | str) -> Recovery:
    levels = [one for one in Recovery if one is not Recovery.SNAPSHOT]
    if given not in levels:
        why = " (the protocol has no snapshots)" if given == Recovery.SNAPSHOT else ""
        raise UsageError(
            f"an MCP server cannot recover by {given!r}{why}; choose one of {', '.join(levels)}"
        )
    return Recovery(given)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise UsageError(f"`tools` is a list of names, not one string: [{given!r}]")
    return tuple(given)
