"""Visit: one request as it comes: where it goes, whose it is, and its body within bounds."""

import asyncio
import time

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.gateway.calls.tool_calls import ToolHearing
from holdfast.gateway.http.response import Telling
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.messages import RequestRejected, Wire
from holdfast.gateway.wires.anthropic import errors
from holdfast.gateway.wires.openai import errors as openai_errors

UNKNOWN = "unknown"
TICKET = "x-holdfast-ticket"


class Visit:
    """Everything about it that is logged or counted is in here, and none of it is secret."""

    def __init__(self, request: web.Request, limits: GatewayLimits):
        self.request = request
        self.telling = Telling(request, limits)
        in_path, self.path = _bound(request.path)
        self.keys = tuple(dict.fromkeys(one for one in (in_path, *_keys_in(request)) if one))
        """All that it was sent with, which should be one."""
        self.key = self.keys[0] if self.keys else ""
        self.route = UNKNOWN
        """A name of ours: what was asked for may hold a key."""
        self.wire: Wire | None = None
        self.replayed: bool | None = None
        self.ignored: tuple[str, ...] = ()
        """What of the request was left out."""
        self.tool: ToolHearing | None = None
        """The call of a tool that it waits for."""
        self._limits = limits
        self._has_gone_on = False
        self._since = time.monotonic()

    @property
    def trajectory(self) -> str:
        """The name of the one it belongs to; "" while that is not known."""
        return self.telling.trajectory

    @property
    def is_inside(self) -> bool:
        """Whether it comes from another worker of the same gateway."""
        transport = self.request.transport
        return transport is not None and isinstance(transport.get_extra_info("sockname"), str)

    @property
    def ticket(self) -> str:
        """By which another worker, who tells the answer, can say that it did not arrive."""
        return self.request.headers.get(TICKET, "")[:64] if self.is_inside else ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    @property
    def is_anthropic(self) -> bool:
        """Whether whoever asks expects Anthropic's shapes, where the path is not a wire's."""
        is_messages = self.path == "/v1/messages" or self.path.startswith("/v1/messages/")
        return is_messages or "anthropic-version" in self.request.headers

    def refusal(self, refused: RequestRejected) -> bytes:
        if self.wire is not None:
            return self.wire.refusal(refused)
        shape = errors.refusal if self.is_anthropic else openai_errors.encoded
        return shape(refused)

    async def body(self) -> bytes:
        self._check_length()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                await self._go_on()
                return await self.request.read()
        except TimeoutError:
            raise RequestRejected(408, "the body came too slowly", code="request_timeout") from None
        except web.HTTPRequestEntityTooLarge:
            raise self._too_large() from None
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise RequestRejected(400, "the body is not what its headers say") from error

    def _check_length(self) -> None:
        length = self.request.content_length
        if length is not None and length > self._limits.body:
            raise self._too_large()

    def _too_large(self) -> RequestRejected:
        return RequestRejected(
            413, f"a body holds at most {self._limits.body} bytes", code="request_too_large"
        )

    async def _go_on(self) -> None:
        """curl asks before it sends a body of some size; it is told once."""
        if self._has_gone_on or self.request.headers.get("expect", "").lower() != "100-continue":
            return
        self._has_gone_on = True
        writer = self.request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0


def _bound(path: str) -> tuple[str, str]:
    """The key that a path begins with, as `/t/KEY/…`, and the rest of it."""
    if not path.startswith("/t/"):
        return "", path
    key, slash, rest = path[3:].partition("/")
    return key, slash + rest


def _keys_in(request: web.Request) -> tuple[str, str]:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer, request.headers.get("x-api-key", "")
