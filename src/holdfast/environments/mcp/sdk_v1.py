"""Gives version 1 of the `mcp` package the interface of version 2, which the other modules use.

Some libraries need version 1, and both versions cannot be installed together. The protocol is the
same. Version 1 always begins with a handshake.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.environments.mcp.connection import ServerLog

CONNECTION_CLOSED = -32000
_TERMINATED = 32600
"""The error code with which version 1's client says that the server no longer knows the session."""
_INVALID_REQUEST = -32600


def is_installed() -> bool:
    """Returns whether version 1 is installed. Version 2 has its types in another package."""
    return find_spec("mcp_types") is None


class V1Error(Exception):
    """An error with which the server answered a call."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = _INVALID_REQUEST if code == _TERMINATED else code
        self.message = message


class V1Client:
    """A client of version 1 with the interface of version 2."""

    def __init__(self, transport: Any, *, name: str):
        self._transport = transport
        self._name = name
        self._stack = AsyncExitStack()
        self._closed = asyncio.Event()
        self._session: Any = None
        self.instructions: str | None = None
        self.session = SimpleNamespace(initialize_result=None)

    async def __aenter__(self) -> "V1Client":
        module, types = import_module("mcp.client.session"), import_module("mcp.types")
        try:
            streams = await self._stack.enter_async_context(self._transport)
            info = types.Implementation(name=self._name, version="1")
            session = module.ClientSession(*streams[:2], client_info=info)
            self._session = await self._stack.enter_async_context(session)
            result = await self._response(self._session.initialize())
        except BaseException:
            self._closed.set()
            await self._stack.aclose()
            raise
        self.instructions, self.session.initialize_result = result.instructions, result
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        # Ends the calls that still wait: version 1 would let them wait for ever.
        self._closed.set()
        return await self._stack.__aexit__(*error)

    async def list_tools(self, *, cursor: str | None) -> Any:
        types = import_module("mcp.types")
        params = types.PaginatedRequestParams(cursor=cursor)
        page = await self._response(self._session.list_tools(params=params))
        return SimpleNamespace(tools=[*map(_tool, page.tools)], next_cursor=page.nextCursor)

    async def call_tool(self, name: str, arguments: dict[str, object]) -> Any:
        result = await self._response(self._session.call_tool(name, arguments))
        return SimpleNamespace(
            content=[*map(_block, result.content)],
            structured_content=result.structuredContent,
            is_error=bool(result.isError),
        )

    async def _response(self, request: Any) -> Any:
        from mcp.shared import exceptions

        call = asyncio.ensure_future(request)
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({call, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise V1Error(CONNECTION_CLOSED, "Connection closed")
            return call.result()
        except exceptions.McpError as error:  # type: ignore[attr-defined]
            raise V1Error(error.error.code, error.error.message) from error
        finally:
            call.cancel()
            closed.cancel()
            await asyncio.gather(call, closed, return_exceptions=True)


def parse_message(line: bytes) -> Any:
    """Returns the JSON-RPC message in a line. Raises ValueError."""
    return import_module("mcp.types").JSONRPCMessage.model_validate_json(line)


@asynccontextmanager
async def http(
    url: str,
    *,
    headers: Mapping[str, str],
    timeout: tuple[float, float],
    log: "ServerLog",
    lost: Callable[[], None],
) -> AsyncIterator[Any]:
    """Yields the streams of a connection to a URL. `timeout` holds the seconds to connect and
    to read.
    """
    httpx: Any = import_module("httpx")
    client = import_module("mcp.client.streamable_http")

    class ReportingTransport(httpx.AsyncHTTPTransport):  # type: ignore[misc]
        """A transport that calls `lost` when the server is gone. The client of version 1 would only
        log this and let the caller wait."""

        async def handle_async_request(self, request: Any) -> Any:
            try:
                response = await super().handle_async_request(request)
            except httpx.TransportError as error:
                if request.method == "POST":
                    log.add(f"{type(error).__name__}: {error}")
                    lost()
                raise
            if response.is_error and request.method == "POST":
                log.add(f"HTTP {response.status_code} {response.reason_phrase}")
            return response

    limits = httpx.Timeout(timeout[0], read=timeout[1])
    async with (
        httpx.AsyncClient(
            headers=dict(headers), timeout=limits, transport=ReportingTransport()
        ) as http_client,
        client.streamable_http_client(url, http_client=http_client) as streams,
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
    content_block = SimpleNamespace(**dict(block))
    content_block.mime_type = getattr(block, "mimeType", None)
    if block.type == "resource":
        content_block.resource = SimpleNamespace(**dict(block.resource))
        content_block.resource.mime_type = block.resource.mimeType
    return content_block
