"""Adds members to `clientInfo` in the handshake.

Some servers expect members that the protocol does not define; the `mcp` package would drop them, so
they are put into the message when it is sent.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.shared.message import SessionMessage

if TYPE_CHECKING:
    from mcp.client import Transport
    from mcp.client._transport import TransportStreams, WriteStream


@asynccontextmanager
async def with_client_info(
    transport: "Transport", info: Mapping[str, object]
) -> "AsyncIterator[TransportStreams]":
    async with transport as (incoming, outgoing):
        yield incoming, _ClientInfoStream(outgoing, info)


class _ClientInfoStream:
    """A stream that changes the `initialize` request."""

    def __init__(self, stream: "WriteStream[SessionMessage]", info: Mapping[str, object]):
        self._stream = stream
        self._info = info

    async def send(self, item: SessionMessage, /) -> None:
        # Version 1 of the package wraps each message in a `root`.
        message: Any = getattr(item.message, "root", item.message)
        if getattr(message, "method", None) == "initialize":
            params = message.params or {}
            client = {**params.get("clientInfo", {}), **self._info}
            message.params = {**params, "clientInfo": client}
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_ClientInfoStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stream.__aexit__(*error)
