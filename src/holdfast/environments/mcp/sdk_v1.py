"""Version 1 of the `mcp` package, under the names of version 2, which the rest is written for.

Version 2 cannot be installed beside libraries that need version 1; their servers speak the same
protocol. Always begins with a handshake.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace, TracebackType
from typing import Any

from holdfast.environments.mcp.server_log import McpTexts

CONNECTION_CLOSED = -32000
_TERMINATED = 32600
"""What its client makes of a session that the server does not know any more."""
_INVALID_REQUEST = -32600


def is_first() -> bool:
    """Whether version 1 is installed: version 2 has its types in a package of its own."""
    return find_spec("mcp_types") is None


class FirstError(Exception):
    """An error that a call was answered with."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = _INVALID_REQUEST if code == _TERMINATED else code
        self.message = message


class FirstClient:
    """A client of version 1; used like one of version 2."""

    def __init__(self, transport: Any, *, name: str):
        self._transport = transport
        self._name = name
        self._stack = AsyncExitStack()
        self._closed = asyncio.Event()
        self._own: Any = None
        self.instructions: str | None = None
        self.session = SimpleNamespace(initialize_result=None)

    async def __aenter__(self) -> "FirstClient":
        module, types = import_module("mcp.client.session"), import_module("mcp.types")
        try:
            streams = await self._stack.enter_async_context(self._transport)
            about = types.Implementation(name=self._name, version="1")
            session = module.ClientSession(*streams[:2], client_info=about)
            self._own = await self._stack.enter_async_context(session)
            told = await self._asked(self._own.initialize())
        except BaseException:
            self._closed.set()
            await self._stack.aclose()
            raise
        self.instructions, self.session.initialize_result = told.instructions, told
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        # Whoever waits for an answer would wait on: a session of version 1 does not tell them.
        self._closed.set()
        return await self._stack.__aexit__(kind, error, trace)

    async def list_tools(self, *, cursor: str | None) -> Any:
        types = import_module("mcp.types")
        params = types.PaginatedRequestParams(cursor=cursor)
        page = await self._asked(self._own.list_tools(params=params))
        return SimpleNamespace(
            tools=[_tool(one) for one in page.tools], next_cursor=page.nextCursor
        )

    async def call_tool(self, name: str, arguments: dict[str, object]) -> Any:
        found = await self._asked(self._own.call_tool(name, arguments))
        return SimpleNamespace(
            content=[_block(one) for one in found.content],
            structured_content=found.structuredContent,
            is_error=bool(found.isError),
        )

    async def _asked(self, asking: Any) -> Any:
        from mcp.shared import exceptions

        call = asyncio.ensure_future(asking)
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({call, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise FirstError(CONNECTION_CLOSED, "Connection closed")
            return call.result()
        except exceptions.McpError as error:  # type: ignore[attr-defined]
            raise FirstError(error.error.code, error.error.message) from error
        finally:
            call.cancel()
            closed.cancel()
            await asyncio.gather(call, closed, return_exceptions=True)


def parsed(line: bytes) -> Any:
    """A message of the wire; ValueError if it is none."""
    return import_module("mcp.types").JSONRPCMessage.model_validate_json(line)


@asynccontextmanager
async def http(
    url: str,
    *,
    headers: Mapping[str, str],
    timeout: tuple[float, float],
    words: McpTexts,
    lost: Callable[[], None],
) -> AsyncIterator[Any]:
    """The transport of a URL. `timeout`: seconds to connect, and to read."""
    httpx: Any = import_module("httpx")
    client = import_module("mcp.client.streamable_http")

    class Heard(httpx.AsyncHTTPTransport):  # type: ignore[misc]
        """Its client only logs that the server is gone, and lets whoever asked wait."""

        async def handle_async_request(self, request: Any) -> Any:
            try:
                response = await super().handle_async_request(request)
            except httpx.TransportError as error:
                if request.method == "POST":
                    words.say(f"{type(error).__name__}: {error}")
                    lost()
                raise
            if response.is_error and request.method == "POST":
                words.say(f"HTTP {response.status_code} {response.reason_phrase}")
            return response

    limits = httpx.Timeout(timeout[0], read=timeout[1])
    async with (
        httpx.AsyncClient(headers=dict(headers), timeout=limits, transport=Heard()) as own,
        client.streamable_http_client(url, http_client=own) as streams,
    ):
        yield streams[:2]


def _tool(tool: Any) -> SimpleNamespace:
    hints = tool.annotations
    return SimpleNamespace(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.inputSchema,
        annotations=hints
        and SimpleNamespace(
            read_only_hint=hints.readOnlyHint, idempotent_hint=hints.idempotentHint
        ),
    )


def _block(block: Any) -> SimpleNamespace:
    told = SimpleNamespace(**dict(block))
    told.mime_type = getattr(block, "mimeType", None)
    if block.type == "resource":
        told.resource = SimpleNamespace(**dict(block.resource))
        told.resource.mime_type = block.resource.mimeType
    return told
