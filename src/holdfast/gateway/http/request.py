"""One HTTP request: its route, its key, its body within limits, and its response.

A client that does not read is disconnected at a deadline, and its answer does not count as
delivered.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.gateway.http.tickets import RelayedSubscription, Tickets
from holdfast.gateway.limits import SERVER, GatewayLimits
from holdfast.gateway.protocol.messages import RequestRejected, Wire
from holdfast.gateway.wires.anthropic import errors
from holdfast.gateway.wires.openai import errors as openai_errors
from holdfast.off_loop import off_loop
from holdfast.request_body import read_body, too_large
from holdfast.request_guard import RequestRefused

Body = TypeVar("Body")
UNKNOWN = "unknown"
TICKET = "x-holdfast-ticket"
ELSEWHERE = "elsewhere"
ELSEWHERE_HEADER = "x-holdfast-elsewhere"
"""The header of a worker's response which says that this worker does not have the trajectory."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestContext:
    """One HTTP request, with everything about it that is logged or counted. Only `key`, `keys` and
    the body are secret."""

    def __init__(
        self, request: web.Request, limits: GatewayLimits, tickets: Tickets, inside: str = ""
    ):
        """`inside` is the path of the socket for the other workers of the same gateway."""
        self.request = request
        transport = request.transport
        self.is_inside = bool(
            inside and transport is not None and transport.get_extra_info("sockname") == inside
        )
        """Whether the request comes from another worker of the same gateway."""
        in_path, self.path = _split_key(request.path)
        self.keys = tuple(dict.fromkeys(key for key in (in_path, *_header_keys(request)) if key))
        """All keys of the request. A request should have only one key."""
        self.key = self.keys[0] if self.keys else ""
        self.route = UNKNOWN
        """The route for logs and counts. The path itself is not used there, because it may contain
        a key."""
        self.wire: Wire | None = None
        self.trajectory = ""
        """The name of its trajectory; "" while that is not known."""
        self.answer_id = ""
        """The id of the call's whole answer, as soon as it exists."""
        self.has_begun = False
        """Whether a status was sent, so that no other status can be sent."""
        self.status = 0
        """The status of the response, or of the error that ended a stream."""
        self.replayed: bool | None = None
        self.ignored: tuple[str, ...] = ()
        """The fields that were removed from the request."""
        self.limits = limits
        self._tickets = tickets
        self._was_continued = False
        self._since = time.monotonic()

    @property
    def ticket(self) -> str:
        """Returns the ticket by which the worker that relays the response reports whether it
        arrived, or ""."""
        return self.request.headers.get(TICKET, "")[:64] if self.is_inside else ""

    def leave(self, subscription: RelayedSubscription, *, delivered: bool) -> None:
        """Ends a subscription whose response has ended here. If another worker relays the response,
        the report of that worker decides whether it was delivered."""
        if delivered and self.ticket:
            self._tickets.hold(self.ticket, subscription, self.request.protocol)
        else:
            subscription.leave(delivered=delivered)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    @property
    def is_anthropic(self) -> bool:
        """Returns whether the client expects Anthropic's formats, for paths that do not belong to a
        wire."""
        is_messages = self.path == "/v1/messages" or self.path.startswith("/v1/messages/")
        return is_messages or "anthropic-version" in self.request.headers

    def format_error(self, rejection: RequestRejected) -> bytes:
        if self.wire is not None:
            return self.wire.format_error(rejection)
        encode = errors.format_error if self.is_anthropic else openai_errors.format_error
        return encode(rejection)

    async def body(self) -> bytes:
        self._check_length()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                await self._send_continue()
                return await read_body(self.request)
        except RequestRefused as refusal:
            code = "request_too_large" if refusal.status == 413 else ""
            raise RequestRejected(refusal.status, str(refusal), code=code) from None
        except TimeoutError:
            raise RequestRejected(408, "the body came too slowly", code="request_timeout") from None
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise RequestRejected(400, "the body is not what its headers say") from error

    async def parse(self, kind: type[Body], *, wanted: str) -> Body:
        """Returns the body, parsed as JSON. A missing body is an empty object. Raises
        `RequestRejected`."""
        body = await self.body()
        try:
            return await off_loop(
                lambda: msgspec.json.decode(body or b"{}", type=kind), size=len(body)
            )
        except (ValueError, RecursionError) as error:  # Invalid UTF-8 raises no MsgspecError.
            raise RequestRejected(400, f"it wants {wanted}: {error}") from error

    def _check_length(self) -> None:
        length = self.request.content_length
        if length is not None and length > self.limits.body:
            raise self._too_large()

    def _too_large(self) -> RequestRejected:
        return RequestRejected(413, too_large(self.limits.body), code="request_too_large")

    async def _send_continue(self) -> None:
        """Sends `100 Continue` once, for clients such as curl that wait for it before they send a
        large body."""
        if self._was_continued or self.request.headers.get("expect", "").lower() != "100-continue":
            return
        self._was_continued = True
        writer = self.request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0

    # --- the response

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
        await self.begin(response)
        await self.write(response.write_eof())
        return response

    async def send_json(self, value: object, status: int = 200) -> web.StreamResponse:
        return await self.send(msgspec.json.encode(value), status)

    async def begin(self, response: web.StreamResponse, request_id: str = "") -> None:
        # OpenAI's library reads the first, Anthropic's the second.
        request_id = self.answer_id or request_id or self._request_id()
        response.headers["x-request-id"] = response.headers["request-id"] = request_id
        response.headers["Server"] = SERVER
        self.has_begun, self.status = True, response.status
        await response.prepare(self.request)

    def _request_id(self) -> str:
        """Returns the client's id of the request, or a new one."""
        sent = self.request.headers.get("x-request-id", "")
        return sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

    async def write(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self.limits.write_seconds):
                await writing
        except TimeoutError:
            self.abort()
            raise ConnectionResetError("the client does not read") from None

    def abort(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()


def _split_key(path: str) -> tuple[str, str]:
    """Splits a path such as `/t/KEY/…` into its key and the rest. Without a key, the key is ""."""
    if not path.startswith("/t/"):
        return "", path
    key, slash, rest = path[3:].partition("/")
    return key, slash + rest


def _header_keys(request: web.Request) -> tuple[str, str]:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer, request.headers.get("x-api-key", "")
