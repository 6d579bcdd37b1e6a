"""Follows one command in a container over a raw connection: its input, its output, its end.

The engine sends the output in frames: one byte for the stream, three zeros, four bytes of length. A
command's input ends when one side of the connection is closed. aiohttp cannot do this, so this
module speaks HTTP/1.1 itself.
"""

import asyncio
import struct
from collections.abc import Callable

from holdfast.worlds.contract.failures import ProviderDown
from holdfast.worlds.docker.address import ContainerEngine
from holdfast.worlds.docker.api import CONNECT_SECONDS, refusal_of

HEADER = struct.Struct(">BxxxL")
MAX_ANSWER = 1 << 16
PART_BYTES = 1 << 18

Sink = Callable[[bytes], None]


class ExecStream:
    """The connection to one command that has begun."""

    def __init__(
        self,
        address: ContainerEngine,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._address = address
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: ContainerEngine, path: str) -> "ExecStream":
        """Begins the command and returns its connection."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await _connect(address)
        except OSError as error:
            raise address.unreachable(error) from error
        stream = cls(address, reader, writer)
        try:
            await stream._begin(path)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def _begin(self, path: str) -> None:
        body = b'{"Detach":false,"Tty":false}'
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        try:
            answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(answer.split(" ", 2)[1])
            if status >= 300:
                raise refusal_of(status, await self._reader.read(MAX_ANSWER))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ProviderDown(f"{self._address} broke off a command: {error}") from error

    async def follow(self, stdin: bytes, sink: Sink) -> None:
        """Sends the input and passes the output on until the command has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                feeding = group.create_task(self._feed(stdin))
                await self._drain(sink)
                feeding.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _feed(self, stdin: bytes) -> None:
        try:
            for at in range(0, len(stdin), PART_BYTES):
                self._writer.write(stdin[at : at + PART_BYTES])
                await self._writer.drain()
            if stdin:
                self._writer.write_eof()
        except OSError:
            return  # The command has ended without reading all; `_drain` knows how.

    async def _drain(self, sink: Sink) -> None:
        try:
            while True:
                header = await self._header()
                if header is None:
                    return
                left = HEADER.unpack(header)[1]
                while left:
                    part = await self._reader.read(min(left, PART_BYTES))
                    if not part:
                        raise ConnectionResetError("the connection ended within a frame")
                    left -= len(part)
                    sink(part)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ProviderDown(f"{self._address} broke off a command: {error}") from error

    async def _header(self) -> bytes | None:
        """Returns the header of the next frame, or None at the end of the output. A reset
        connection also counts as the end, because an engine resets it if the command did not read
        all of the input."""
        try:
            return await self._reader.readexactly(HEADER.size)
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
        except ConnectionError:
            pass
        return None

    async def close(self) -> None:
        self._writer.transport.abort()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # It was broken before.


async def _connect(
    address: ContainerEngine,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.socket:
        return await asyncio.open_unix_connection(address.socket)
    return await asyncio.open_connection(address.host, address.port)
