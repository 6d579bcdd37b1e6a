"""Writes the response to a request, as JSON or as a stream of events.

A stream carries the parts of its answer as they become durable, and keep-alives while there is
nothing new; its terminal event is sent when the whole answer is recorded. A client that does not
read is disconnected at a deadline, and its answer does not count as delivered.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable

from aiohttp import web

from holdfast import crashpoint
from holdfast.gateway.calls.call import CallSubscription
from holdfast.gateway.http.exceptions import wait_for_answer
from holdfast.gateway.limits import SERVER, GatewayLimits
from holdfast.gateway.protocol.messages import (
    Answer,
    EventStream,
    GenerationRequest,
    Opening,
    RequestRejected,
    StreamMismatch,
    Wire,
)

_log = logging.getLogger("holdfast.gateway")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class ResponseWriter:
    """Of one request."""

    def __init__(self, request: web.Request, limits: GatewayLimits):
        self._request = request
        self._limits = limits
        self.has_begun = False
        """Whether a status was sent, so that no other can be."""
        self.status = 0
        """That of the response, or of the error that a stream ended with."""
        self.answer: Answer | None = None
        self._opening: Opening | None = None
        self.trajectory = ""

    async def send(
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
        await self._write(response.write_eof())
        return response

    async def send_answer(
        self, wire: Wire, request: GenerationRequest, subscription: CallSubscription
    ) -> web.StreamResponse:
        """In the form that was requested. Raises `RequestRejected` only while nothing was sent."""
        if request.stream:
            return await self._stream(wire, request, subscription)
        self.answer = await wait_for_answer(subscription, self.trajectory)
        return await self.send(wire.format_answer(request, self.answer))

    async def _stream(
        self, wire: Wire, request: GenerationRequest, subscription: CallSubscription
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response, stream = web.StreamResponse(headers=headers), wire.stream(request)
        # What can be rejected at once gets its own status, instead of a stream of 200.
        while not await self._send_deltas(response, wire, stream, subscription):
            pass
        events = await self._last_events(stream, subscription)
        if not self.has_begun:
            await self._begin(response)
        crashpoint.reach("gateway.recorded")
        for event in events:
            await self._write(response.write(event))
        await self._write(response.write_eof())
        crashpoint.reach("gateway.sent")
        return response

    async def _send_deltas(
        self,
        response: web.StreamResponse,
        wire: Wire,
        stream: EventStream,
        subscription: CallSubscription,
    ) -> bool:
        """Sends what became durable, or a keep-alive. Whether the whole answer is ready."""
        deltas = await subscription.next_deltas(self._limits.ping_seconds)
        if subscription.is_ready:
            return True
        if not self.has_begun:
            self._opening = subscription.opening if deltas else None
            await self._begin(response)
        if deltas:
            assert subscription.opening is not None, "an answer is opened before its first delta"
            events = stream.more(subscription.opening, deltas)
            await self._write(response.write(b"".join(events)))
            crashpoint.reach("gateway.delta")
        else:
            await self._write(response.write(wire.keep_alive()))
        return False

    async def _last_events(
        self, stream: EventStream, subscription: CallSubscription
    ) -> list[bytes]:
        try:
            self.answer = await wait_for_answer(subscription, self.trajectory)
            return stream.end(self.answer)
        except RequestRejected as rejection:
            if not self.has_begun:
                raise
            self.status = rejection.status
            return [stream.error(rejection)]
        except StreamMismatch as error:
            _log.error("a stream of %r is broken off: %s", self.trajectory, error)
            self._abort()
            raise ConnectionResetError(
                "the answer does not begin with what was sent of it"
            ) from error

    async def _begin(self, response: web.StreamResponse) -> None:
        # OpenAI's library reads the first, Anthropic's the second.
        request_id = self._request_id()
        response.headers["x-request-id"] = response.headers["request-id"] = request_id
        response.headers["Server"] = SERVER
        self.has_begun, self.status = True, response.status
        await response.prepare(self._request)

    def _request_id(self) -> str:
        """The answer's; while there is none, the client's own or a new one."""
        known = self.answer or self._opening
        if known is not None:
            return known.id
        sent = self._request.headers.get("x-request-id", "")
        return sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

    async def _write(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await writing
        except TimeoutError:
            self._abort()
            raise ConnectionResetError("the client does not read") from None

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
