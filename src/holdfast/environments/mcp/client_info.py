"""What a client says of itself when a session begins, beside its name and version.

The `mcp` package drops what the protocol does not know; some servers want to know more all the
same. It is put into the handshake on its way out.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mcp.shared.message import SessionMessage

if TYPE_CHECKING:
    from mcp.client import Transport
    from mcp.client._transport import TransportStreams, WriteStream


@asynccontextmanager
async def introduced(
    transport: "Transport", words: Mapping[str, object]
) -> "AsyncIterator[TransportStreams]":
    async with transport as (arriving, leaving):
        yield arriving, _Introducing(leaving, words)


class _Introducing:
    """A stream that adds to the first request."""

    def __init__(self, stream: "WriteStream[SessionMessage]", words: Mapping[str, object]):
        self._stream = stream
        self._words = words

    async def send(self, item: SessionMessage, /) -> None:
        # In version 1 of the package, a message wraps what it is.
        said: Any = getattr(item.message, "root", item.message)
        if getattr(said, "method", None) == "initialize":
            params = said.params or {}
            client = {**params.get("clientInfo", {}), **self._words}
            said.params = {**params, "clientInfo": client}
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_Introducing":
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)
