"""Connections to the gateway that are read while they are written to."""

import asyncio
import json
from collections.abc import Callable

from support.gateway.counter import Reply
from support.gateway.streams import (
    unchunked,
)


class Connection:
    """A stream that is read piece by piece."""

    def __init__(self, port: int, raw: bytes):
        self._port, self._raw, self.body = port, raw, b""

    async def __aenter__(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._raw)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def kept_alive(self, times: int = 1) -> None:
        await self._until(lambda: self.body.count(b": keep-alive") >= times)

    async def wait_for(self, text: str = "Once upon") -> None:
        """However it is cut."""
        await self._until(lambda: text in self.text)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                read = await self._reader.read(65536)
                assert read, f"it ended before that: {self.body!r}"
                self.body += read

    async def rest(self) -> bytes:
        async with asyncio.timeout(60):
            self.body += await self._reader.read()
        return self.events

    @property
    def events(self) -> bytes:
        """The events so far."""
        return unchunked(Reply(self.body).body)

    @property
    def text(self) -> str:
        return text_of(self.events)


def text_of(body: bytes) -> str:
    """What a chat stream said, as far as its lines are whole."""
    text = ""
    for line in body.split(b"\n"):
        if line.startswith(b"data: {") and line.endswith(b"}"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text
