"""Session: one connection to an MCP server, owned by one task from its beginning to its end.

The client of the `mcp` package has to be entered and left in the same task; calls may come from
any. Invariants:
- Nothing of a session is left when `open` raises or `close` returns: no task, process or pipe, also
  when the caller is cancelled.
- A session that lost its server says so at once, with the server's last words, and takes no more
  calls. It is never repaired: whoever needs one opens another.
- What the server refuses is `ToolSaysNo`; everything else that is no answer is `EnvironmentBroken`.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import msgspec

from holdfast.environments.mcp.connection import Connection, Http
from holdfast.environments.mcp.content import text_of
from holdfast.environments.mcp.listing import listed
from holdfast.environments.mcp.sdk_v1 import (
    CONNECTION_CLOSED,
    FirstClient,
    FirstError,
    is_first,
)
from holdfast.environments.mcp.server_log import McpTexts
from holdfast.records.errors import EnvironmentBroken, HoldfastError, ToolSaysNo, UsageError
from holdfast.records.failure import root_of

if TYPE_CHECKING:
    import anyio
    import mcp_types
    from mcp.client import Client
    from mcp.shared.exceptions import MCPError

NAME = "holdfast"
INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
GOODBYE = 10.0
"""Seconds that a session has to end by itself: more than a process needs to be killed."""
_FORCED = 5.0
_EXPLAINED = 2.0
_NOBODY_TO_ASK = re.compile(r"(Elicitation|Sampling|List roots) not supported|no back-channel")
"""What a server hears that has questions of its own; it makes an error of it."""


class McpSession:
    """Made by `open`, ended by `close`."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float,
        handshake: bool,
        seed: int | None,
        introduction: Mapping[str, object],
    ):
        self.tools: tuple[mcp_types.Tool, ...] = ()
        """What the server listed when the session began."""
        self.instructions = ""
        self.began_with_handshake = False
        self.answered = False
        """Whether any call was answered."""
        self._connection = connection
        self._timeout = timeout
        self._handshake = handshake
        self._seed = seed
        self._introduction = introduction
        self._words = McpTexts(connection.secrets)
        self._client: Client | None = None
        self._settled = asyncio.Event()
        self._leaving = asyncio.Event()
        self._error: BaseException | None = None
        self._heard = 0.0
        self._scope = _new_scope()
        self._owner = asyncio.create_task(self._own(), name=f"MCP {connection.described}")

    @classmethod
    async def open(
        cls,
        connection: Connection,
        *,
        timeout: float,
        handshake: bool = False,
        seed: int | None = None,
        introduction: Mapping[str, object] | None = None,
    ) -> "McpSession":
        """Ready for calls, with its tools listed; `EnvironmentBroken` if it is not so in time.

        Without `handshake`, the server is asked first whether it needs none. `introduction` is what
        the client says of itself beside its name.
        """
        session = cls(
            connection,
            timeout=timeout,
            handshake=handshake,
            seed=seed,
            introduction=introduction or {},
        )
        try:
            async with asyncio.timeout(timeout):
                await session._settled.wait()
        except TimeoutError:
            await session.close()
            raise session._broken(f"did not begin a session within {timeout:g} s") from None
        except BaseException:
            await session.close()
            raise
        if session._client is None:
            await session.close()
            raise session._did_not_begin()
        return session

    @property
    def is_alive(self) -> bool:
        return self._client is not None and not self._leaving.is_set() and not self._owner.done()

    async def call(self, name: str, arguments: dict[str, object]) -> str:
        """What the tool answered, as text."""
        if self._client is None or not self.is_alive:
            raise await self._lost(f"is gone, and {name} was not called")
        _check_text(arguments)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                result = await self._client.call_tool(name, arguments)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise self._late(name, began) from None
            raise await self._judged(name, error) from error
        self._note_answer()
        text = text_of(result)
        if result.is_error:
            raise ToolSaysNo(text or f"{name} failed, and does not say why")
        return text

    async def close(self) -> None:
        """Ends the session and waits for it, however often the caller is cancelled meanwhile."""
        self._leaving.set()
        if not self._settled.is_set():
            self._scope.cancel()
        cancelled: asyncio.CancelledError | None = None
        for patience, force in ((GOODBYE, self._scope.cancel), (_FORCED, self._owner.cancel)):
            try:
                await asyncio.wait({self._owner}, timeout=patience)
            except asyncio.CancelledError as error:
                cancelled = error
            if self._owner.done():
                break
            force()
        else:
            await asyncio.wait({self._owner}, timeout=_FORCED)
        if cancelled is not None:
            raise cancelled

    # --- the owner

    async def _own(self) -> None:
        try:
            with self._scope:
                async with self._made_client() as client:
                    self.tools = await listed(client)
                    self.instructions = client.instructions or ""
                    self.began_with_handshake = client.session.initialize_result is not None
                    self._client = client
                    self._settled.set()
                    await self._leaving.wait()
        except Exception as error:
            self._error = root_of(error)
        finally:
            self._leaving.set()
            self._settled.set()

    def _made_client(self) -> "Client":
        _quiet()
        transport = self._connection.transport(
            self._words, self._leaving.set, seed=self._seed, timeout=self._timeout
        )
        if self._introduction:
            from holdfast.environments.mcp.client_info import introduced

            transport = introduced(transport, self._introduction)
        if is_first():
            return FirstClient(transport, name=NAME)  # type: ignore[return-value]
        from mcp.client import Client
        from mcp_types import Implementation

        return Client(
            transport,
            mode="legacy" if self._handshake else "auto",
            cache=None,
            client_info=Implementation(name=NAME, version="1"),
        )

    # --- what went wrong

    async def _judged(self, name: str, error: Exception) -> HoldfastError:
        if not _is_answer(error):
            return self._broken(f"broke while it ran {name}: {type(error).__name__}: {error}")
        if _is_refusal(error):
            self._note_answer()
            return ToolSaysNo(error.message)
        if _ends_session(error, is_http=isinstance(self._connection, Http)):
            self._leaving.set()
            return await self._lost(f"was lost while it ran {name}: {error.message}")
        self._note_answer()
        return self._broken(f"broke while it ran {name}: {error.message} ({error.code})")

    def _late(self, name: str, began: float) -> EnvironmentBroken:
        if self._heard < began:
            # All that time it answered nobody: the next call had better find another.
            self._leaving.set()
        return self._broken(f"did not answer {name} within {self._timeout:g} s")

    async def _lost(self, what: str) -> EnvironmentBroken:
        """Waits a little for the reason: the owner, which learns it, is on its way out."""
        await asyncio.wait({self._owner}, timeout=_EXPLAINED)
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
        return self._words.added_to(verb.format(self._connection.described, what))

    def _note_answer(self) -> None:
        self.answered = True
        self._heard = asyncio.get_running_loop().time()


def _new_scope() -> "anyio.CancelScope":
    try:
        import anyio
        import mcp  # noqa: F401  # the package that all of this needs
    except ImportError as error:
        raise UsageError(
            "MCP servers need their extra: pip install '.[mcp]' (in the clone)"
        ) from error
    return anyio.CancelScope()


def _is_answer(error: Exception) -> "TypeGuard[MCPError]":
    """Whether the server, or the connection, answered with it."""
    if is_first():
        return isinstance(error, FirstError)
    from mcp.shared.exceptions import MCPError

    return isinstance(error, MCPError)


def _wrong_package(error: ImportError) -> UsageError:
    """The server did nothing wrong: what is installed here is not what this is written for."""
    from importlib.metadata import version

    return UsageError(
        f"the mcp {version('mcp')} that is installed is of another version than is needed to speak "
        f"to MCP servers ({error}): pip install '.[mcp]' (in the clone)"
    )


def _is_refusal(error: "MCPError") -> bool:
    """The server's answer to a call that it does not take."""
    # The client makes "Not Found" of any HTTP 404, which says nothing about the call.
    unknown = error.code == METHOD_NOT_FOUND and error.message != "Not Found"
    return error.code == INVALID_PARAMS or unknown or bool(_NOBODY_TO_ASK.search(error.message))


def _ends_session(error: "MCPError", *, is_http: bool) -> bool:
    # By HTTP, a server that was restarted does not know the session any more.
    codes = {CONNECTION_CLOSED, *({INVALID_REQUEST, METHOD_NOT_FOUND} if is_http else ())}
    return error.code in codes


def _check_text(arguments: dict[str, object]) -> None:
    try:
        msgspec.json.encode(arguments)
    except UnicodeEncodeError:
        raise ToolSaysNo("the arguments hold characters that no encoding knows") from None


def _quiet() -> None:
    """Keeps the client's log off the terminal, unless the program configured logging."""
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, logging.NullHandler) for one in logger.handlers):
            logger.addHandler(logging.NullHandler())
