"""Telling: how a request's answer goes back, as JSON or as a stream of events.

A stream begins once its answer is durable, or with keep-alives while that is waited for. A client
that does not read is given up at a deadline, and what it was told does not count as delivered.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable

import msgspec
from aiohttp import web

from holdfast.gateway.answering import answered
from holdfast.gateway.exchange import Answer, Ask, Refused, Wire
from holdfast.gateway.limits import SERVER, Limits
from holdfast.gateway.trajectory import Hearing
from holdfast.gateway.wires import sse

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Telling:
    """The way back of one request."""

    def __init__(self, request: web.Request, limits: Limits):
        self._request = request
        self._limits = limits
        self.is_begun = False
        """Whether a status was sent, so that no other can be."""
        self.status = 0
        """That of the answer, or of the error that a stream ended with."""
        self.answer: Answer | None = None
        self.trajectory = ""

    async def whole(
        self,
        body: bytes,
        status: int = 200,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        close: bool = False,
    ) -> web.StreamResponse:
        response = web.Response(body=body, status=status, headers=headers)
        response.headers["Content-Type"] = content_type
        if close:
            response.force_close()
        await self._begin(response)
        await self._taken(response.write_eof())
        return response

    async def call(
        self, wire: Wire, ask: Ask, *, hearing: Hearing, path: str
    ) -> web.StreamResponse:
        """The answer, as it was asked for. Raises `Refused` only while nothing was sent."""
        if ask.stream:
            return await self._stream(wire, ask, hearing=hearing, path=path)
        self.answer = await answered(hearing, self.trajectory)
        return await self.whole(wire.answer(ask, self.answer))

    async def _stream(
        self, wire: Wire, ask: Ask, *, hearing: Hearing, path: str
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        # What can be refused at once is refused with its status, not in a stream of 200.
        if await hearing.wait(self._limits.ping_seconds):
            self.answer = await answered(hearing, self.trajectory)
            events = wire.events(ask, self.answer)
            await self._begin(response)
        else:
            await self._begin(response)
            await self._taken(response.write(wire.keep_alive()))
            while not await hearing.wait(self._limits.ping_seconds):
                await self._taken(response.write(wire.keep_alive()))
            events = await self._events(wire, ask, hearing=hearing, path=path)
        for event in events:
            await self._taken(response.write(event))
        await self._taken(response.write_eof())
        return response

    async def _events(self, wire: Wire, ask: Ask, *, hearing: Hearing, path: str) -> list[bytes]:
        try:
            self.answer = await answered(hearing, self.trajectory)
            return wire.events(ask, self.answer)
        except Refused as refused:
            self.status = refused.status
            return [error_event(wire, refused, path=path)]

    async def _begin(self, response: web.StreamResponse) -> None:
        name = self._request_id()
        # The first is what OpenAI's library reads, the second what Anthropic's does.
        response.headers["x-request-id"] = response.headers["request-id"] = name
        response.headers["Server"] = SERVER
        self.is_begun, self.status = True, response.status
        await response.prepare(self._request)

    def _request_id(self) -> str:
        """The answer's; while there is none, the client's own or a new one."""
        if self.answer is not None:
            return self.answer.id
        sent = self._request.headers.get("x-request-id", "")
        return sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

    async def _taken(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None


def error_event(wire: Wire, refused: Refused, *, path: str) -> bytes:
    """How a stream whose headers were sent tells that there is no answer."""
    if path == "/v1/messages":
        return sse.event("error", wire.refusal(refused))
    if path == "/v1/responses":
        return sse.event("error", _responses_error(refused))
    return sse.data(wire.refusal(refused))


def _responses_error(refused: Refused) -> bytes:
    told = {
        "type": "error",
        "code": refused.code or None,
        "message": refused.message,
        "param": refused.param,
        "sequence_number": 0,
    }
    return msgspec.json.encode(told)
