"""McpSession: one connection to an MCP server, owned by one task from its beginning to its end.

The client of the `mcp` package must be entered and left in the same task. Calls may come from any
task.

- When `open` raises or `close` returns, no task, process or pipe is left, even if the caller was
  cancelled.
- A session that lost its server raises at once, with the server's last output, and accepts no more
  calls. It is never repaired, only replaced.
- A call that the server rejects raises `ToolSaysNo`. Any other failure raises `EnvironmentBroken`.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec

from holdfast.environments.mcp import sdk_v1
from holdfast.environments.mcp.connection import Connection, Http, ServerLog
from holdfast.environments.mcp.listing import list_tools, text_of
from holdfast.extras import needed_by
from holdfast.records.errors import EnvironmentBroken, HoldfastError, ToolSaysNo, UsageError
from holdfast.records.failure import root_of

if TYPE_CHECKING:
    import mcp_types
    from mcp.client import Client
    from mcp.shared.exceptions import MCPError

NAME = "holdfast"
INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
CLOSE_SECONDS = 10.0
"""How many seconds a session has to end by itself. This is more than `process.ServerProcess.stop`
takes."""
_FORCED_CLOSE_SECONDS = 5.0
_REASON_SECONDS = 2.0
_UNSUPPORTED = re.compile(r"(Elicitation|Sampling|List roots) not supported|no back-channel")
"""Matches the error of a tool call in which the server asked this client for something that the
client does not support."""


class McpSession:
    """One session with an MCP server, begun by `open` and ended by `close`."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float,
        handshake: bool = False,
        seed: int | None = None,
        introduction: Mapping[str, object] | None = None,
    ):
        """Begins the session in its own task.

        Unless `handshake` is set, first tries to begin a session without a handshake.
        `introduction` is added to the client's name in the handshake.
        """
        self.tools: tuple[mcp_types.Tool, ...] = ()
        """The server's tools at the beginning of the session."""
        self.instructions = ""
        self.began_with_handshake = False
        self.answered = False
        """Whether any call got a response."""
        self._connection = connection
        self._timeout = timeout
        self._handshake = handshake
        self._seed = seed
        self._introduction = introduction
        self._log = ServerLog(connection.secrets)
        self._client: Client | None = None
        self._ready_or_failed = asyncio.Event()
        self._closing = asyncio.Event()
        self._error: BaseException | None = None
        self._last_response = 0.0
        import anyio  # mcp installs it.

        self._scope = anyio.CancelScope()
        self._owner = asyncio.create_task(self._run(), name=f"MCP {connection.described}")

    @classmethod
    async def open(cls, connection: Connection, **options: Any) -> "McpSession":
        """Opens a session that is ready for calls, with its tools listed.

        `options` are the arguments of the constructor. Raises `EnvironmentBroken`, or `UsageError`
        if the server cannot be started.
        """
        # The import takes seconds, which would block the loop.
        await asyncio.to_thread(_import_mcp)
        session = cls(connection, **options)
        try:
            async with asyncio.timeout(session._timeout):
                await session._ready_or_failed.wait()
        except TimeoutError:
            await session.close()
            seconds = f"{session._timeout:g} s"
            raise session._broken(f"did not begin a session within {seconds}") from None
        except BaseException:
            await session.close()
            raise
        if session._client is None:
            await session.close()
            raise session._did_not_begin()
        return session

    @property
    def is_alive(self) -> bool:
        return self._client is not None and not self._closing.is_set() and not self._owner.done()

    async def call(self, name: str, arguments: dict[str, object]) -> str:
        """Calls the tool and returns its result as text."""
        if self._client is None or not self.is_alive:
            raise await self._lost(f"is gone, and {name} was not called")
        _check_encodable(arguments)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                result = await self._client.call_tool(name, arguments)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise self._late(name, began) from None
            raise await self._classify(name, error) from error
        self._note_response()
        text = text_of(result)
        if result.is_error:
            raise ToolSaysNo(text or f"{name} failed, and does not say why")
        return text

    async def close(self) -> None:
        """Ends the session and waits for its end, even if the caller is cancelled meanwhile."""
        self._closing.set()
        if not self._ready_or_failed.is_set():
            self._scope.cancel()
        cancelled: asyncio.CancelledError | None = None
        steps = ((CLOSE_SECONDS, self._scope.cancel), (_FORCED_CLOSE_SECONDS, self._owner.cancel))
        for seconds, force in steps:
            try:
                await asyncio.wait({self._owner}, timeout=seconds)
            except asyncio.CancelledError as error:
                cancelled = error
            if self._owner.done():
                break
            force()
        else:
            await asyncio.wait({self._owner}, timeout=_FORCED_CLOSE_SECONDS)
        if cancelled is not None:
            raise cancelled

    # --- the owning task

    async def _run(self) -> None:
        try:
            with self._scope:
                async with self._new_client() as client:
                    self.tools = await list_tools(client)
                    self.instructions = client.instructions or ""
                    self.began_with_handshake = client.session.initialize_result is not None
                    self._client = client
                    self._ready_or_failed.set()
                    await self._closing.wait()
        except Exception as error:
            self._error = root_of(error)
        finally:
            self._closing.set()
            self._ready_or_failed.set()

    def _new_client(self) -> "Client":
        _silence_logs()
        transport = self._connection.transport(
            self._log, self._closing.set, seed=self._seed, timeout=self._timeout
        )
        if self._introduction:
            from holdfast.environments.mcp.process import with_client_info

            transport = with_client_info(transport, self._introduction)
        if sdk_v1.is_installed():
            return sdk_v1.V1Client(transport, name=NAME)  # type: ignore[return-value]
        from mcp.client import Client
        from mcp_types import Implementation

        return Client(
            transport,
            mode="legacy" if self._handshake else "auto",
            cache=None,
            client_info=Implementation(name=NAME, version="1"),
        )

    # --- errors

    async def _classify(self, name: str, error: Exception) -> HoldfastError:
        if not _is_mcp_error(error):
            return self._broken(f"broke while it ran {name}: {type(error).__name__}: {error}")
        if _is_rejection(error):
            self._note_response()
            return ToolSaysNo(error.message)
        if _ends_session(error, is_http=isinstance(self._connection, Http)):
            self._closing.set()
            return await self._lost(f"was lost while it ran {name}: {error.message}")
        self._note_response()
        return self._broken(f"broke while it ran {name}: {error.message} ({error.code})")

    def _late(self, name: str, began: float) -> EnvironmentBroken:
        if self._last_response < began:
            # The server answered no other call in that time either, so the next call needs a new
            # session.
            self._closing.set()
        return self._broken(f"did not answer {name} within {self._timeout:g} s")

    async def _lost(self, what: str) -> EnvironmentBroken:
        """Returns the error for a lost session. First waits a moment for the end of the owning
        task, whose error is the reason."""
        await asyncio.wait({self._owner}, timeout=_REASON_SECONDS)
        return self._broken(what + self._reason())

    def _did_not_begin(self) -> HoldfastError:
        if isinstance(self._error, UsageError):
            return UsageError(self._message(str(self._error), verb="MCP server {}: {}"))
        if isinstance(self._error, ImportError):
            return _wrong_package(self._error)
        return self._broken("did not begin a session" + self._reason())

    def _reason(self) -> str:
        error = self._error
        return "" if error is None else f" ({type(error).__name__}: {error})"

    def _broken(self, what: str) -> EnvironmentBroken:
        return EnvironmentBroken(self._message(what))

    def _message(self, what: str, *, verb: str = "MCP server {} {}") -> str:
        return self._log.append_to(verb.format(self._connection.described, what))

    def _note_response(self) -> None:
        self.answered = True
        self._last_response = asyncio.get_running_loop().time()


def _import_mcp() -> None:
    with needed_by("an MCP server", extra="mcp"):
        import mcp  # noqa: F401


def _is_mcp_error(error: Exception) -> "TypeGuard[MCPError]":
    """Returns whether the error is an error response that the `mcp` package raises."""
    if sdk_v1.is_installed():
        return isinstance(error, sdk_v1.V1Error)
    from mcp.shared.exceptions import MCPError

    return isinstance(error, MCPError)


def _wrong_package(error: ImportError) -> UsageError:
    """Returns the error for an `mcp` package that is neither version 1 nor 2."""
    from importlib.metadata import version

    return UsageError(
        f"the mcp {version('mcp')} that is installed is of another version than is needed to speak "
        f"to MCP servers ({error}): pip install '.[mcp]' (in the clone)"
    )


def _is_rejection(error: "MCPError") -> bool:
    """Returns whether the server rejected only this call, for example because of its arguments."""
    # The client reports any HTTP 404 as "Not Found", which says nothing about the call.
    unknown = error.code == METHOD_NOT_FOUND and error.message != "Not Found"
    return error.code == INVALID_PARAMS or unknown or bool(_UNSUPPORTED.search(error.message))


def _ends_session(error: "MCPError", *, is_http: bool) -> bool:
    # Over HTTP, a restarted server does not know the session.
    codes = {sdk_v1.CONNECTION_CLOSED, *({INVALID_REQUEST, METHOD_NOT_FOUND} if is_http else ())}
    return error.code in codes


def _check_encodable(arguments: dict[str, object]) -> None:
    try:
        msgspec.json.encode(arguments)
    except UnicodeEncodeError:
        raise ToolSaysNo("the arguments hold characters that no encoding knows") from None


def _silence_logs() -> None:
    """Keeps the client's log off the terminal, unless the program has configured logging."""
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())


Result = TypeVar("Result")
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 5.0


class Single:
    """Runs work once for several concurrent callers. If the work fails, all callers that waited get
    the error."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tries = 0
        self._error: Exception | None = None

    async def run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        before = self._tries
        async with self._lock:
            if self._tries != before and self._error is not None:
                raise EnvironmentBroken(str(self._error)) from self._error
            self._error = None
            try:
                return await work()
            except Exception as error:
                self._error = error
                raise
            finally:
                self._tries += 1


class SharedSession:
    """A session that is open while at least one environment holds it.

    A lost session is replaced at the next call, once for all waiting callers. If sessions are lost
    before they answered any call, the pauses before the next session grow, so that a broken server
    is not restarted all the time.
    """

    def __init__(self, open_session: Callable[[], Awaitable[McpSession]]):
        self._open = open_session
        self._single = Single()
        self._session: McpSession | None = None
        self._holders = 0
        self._failures = 0

    async def hold(self) -> None:
        self._holders += 1
        try:
            await self.session()
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def session(self) -> McpSession:
        if self._session is not None and self._session.is_alive:
            return self._session
        return await self._single.run(self._renew)

    async def _renew(self) -> McpSession:
        old = self._session
        if old is not None and old.is_alive:
            return old
        self._session = None
        if old is not None:
            self._failures = 0 if old.answered else self._failures + 1
            await old.close()
        if self._failures:
            pause = FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1)
            await asyncio.sleep(min(pause, MAX_PAUSE_SECONDS))
        try:
            session = await self._open()
        except Exception:
            self._failures += 1
            raise
        if self._holders == 0:
            await session.close()
            raise EnvironmentBroken("the MCP session was closed while it was being opened")
        self._session = session
        return session
