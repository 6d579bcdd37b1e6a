"""Telling: how a request's answer goes back, as JSON or as a stream of events.

A stream tells what is durable of its answer, as it becomes so, and keep-alives while there is
nothing new; its terminal event is sent when the whole answer is recorded. A client that does not
read is given up at a deadline, and what it was told does not count as delivered.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable

from aiohttp import web

from holdfast import crashpoint
from holdfast.gateway.calls.call import Hearing
from holdfast.gateway.http.exceptions import answered
from holdfast.gateway.limits import SERVER, GatewayLimits
from holdfast.gateway.protocol.messages import (
    Answer,
    Ask,
    EventStream,
    Opening,
    RequestRejected,
    Untellable,
    Wire,
)

_log = logging.getLogger("holdfast.gateway")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Telling:
    """The way back of one request."""

    def __init__(self, request: web.Request, limits: GatewayLimits):
        self._request = request
        self._limits = limits
        self.is_begun = False
        """Whether a status was sent, so that no other can be."""
        self.status = 0
        """That of the answer, or of the error that a stream ended with."""
        self.answer: Answer | None = None
        self._opening: Opening | None = None
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

    async def call(self, wire: Wire, ask: Ask, *, hearing: Hearing) -> web.StreamResponse:
        """The answer, as it was asked for. Raises `RequestRejected` only while nothing was sent."""
        if ask.stream:
            return await self._stream(wire, ask, hearing)
        self.answer = await answered(hearing, self.trajectory)
        return await self.whole(wire.answer(ask, self.answer))

    async def _stream(self, wire: Wire, ask: Ask, hearing: Hearing) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response, stream = web.StreamResponse(headers=headers), wire.stream(ask)
        # What can be refused at once is refused with its status, not in a stream of 200.
        while not await self._told_live(response, wire, stream=stream, hearing=hearing):
            pass
        events = await self._ending(stream, hearing)
        if not self.is_begun:
            await self._begin(response)
        crashpoint.reach("gateway.recorded")
        for event in events:
            await self._taken(response.write(event))
        await self._taken(response.write_eof())
        crashpoint.reach("gateway.told")
        return response

    async def _told_live(
        self, response: web.StreamResponse, wire: Wire, *, stream: EventStream, hearing: Hearing
    ) -> bool:
        """Tells what is durable, or that it is waited for; whether the answer is there."""
        deltas = await hearing.news(self._limits.ping_seconds)
        if hearing.is_ready:
            return True
        if not self.is_begun:
            self._opening = hearing.opening if deltas else None
            await self._begin(response)
        if deltas:
            assert hearing.opening is not None, "an answer is opened before it is told"
            await self._taken(response.write(b"".join(stream.more(hearing.opening, deltas))))
            crashpoint.reach("gateway.delta")
        else:
            await self._taken(response.write(wire.keep_alive()))
        return False

    async def _ending(self, stream: EventStream, hearing: Hearing) -> list[bytes]:
        try:
            self.answer = await answered(hearing, self.trajectory)
            return stream.end(self.answer)
        except RequestRejected as refused:
            if not self.is_begun:
                raise
            self.status = refused.status
            return [stream.error(refused)]
        except Untellable as error:
            _log.error("a stream of %r is broken off: %s", self.trajectory, error)
            self._abort()
            raise ConnectionResetError("the answer is not what was told of it") from error

    async def _begin(self, response: web.StreamResponse) -> None:
        name = self._request_id()
        # The first is what OpenAI's library reads, the second what Anthropic's does.
        response.headers["x-request-id"] = response.headers["request-id"] = name
        response.headers["Server"] = SERVER
        self.is_begun, self.status = True, response.status
        await response.prepare(self._request)

    def _request_id(self) -> str:
        """The answer's; while there is none, the client's own or a new one."""
        known = self.answer or self._opening
        if known is not None:
            return known.id
        sent = self._request.headers.get("x-request-id", "")
        return sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

    async def _taken(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await writing
        except TimeoutError:
            self._abort()
            raise ConnectionResetError("the client does not read") from None

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
