"""The sockets of a gateway, and errors of HTTP itself.

The listener does not know about trajectories. Each request is handled by a task of its own, which
ends when its client disconnects. Bytes that are not an HTTP request are rejected in OpenAI's format
and not logged, because they may contain a key.
"""

import asyncio
import logging
import socket
import ssl
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from holdfast.gateway.limits import SERVER, GatewayLimits
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.wires.openai import errors
from holdfast.records.errors import UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_LINGER_SECONDS = 1.0
"""Seconds for which the rest of a rejected body is read, so that the rejection arrives."""
_SHUTDOWN_SECONDS = 0.05
_KERNEL_BYTES = 128 * 1024
_log = logging.getLogger("holdfast.gateway")


class _Connection(web.RequestHandler):
    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        # A write ends only when the kernel has all of it. So a client that does not read is noticed
        # while its answer can still be kept.
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        super().connection_made(transport)

    def log_exception(self, *args: object, **kw: object) -> None:
        """Logs an error without its message, which may contain the client's text."""
        error = kw.get("exc_info")
        if isinstance(error, web.RequestPayloadError | HttpProcessingError | ConnectionError):
            _log.info("a connection was given up: %s", type(error).__name__)
            return
        where = error.__traceback__ if isinstance(error, BaseException) else None
        frames = "".join(traceback.format_tb(where))
        _log.error("a connection failed: %s\n%s", type(error).__name__, frames)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc
        if request.writer.output_size > 0:
            raise ConnectionError("the response was begun already")
        if isinstance(exc, LineTooLong):
            status, reason = 431, "a header or the request line is too long"
        else:
            reason = "this is not an HTTP request" if status < 500 else "the gateway failed"
        _log.info("rejected a connection with %d: %s", status, type(exc).__name__)
        response = web.Response(
            body=errors.format_error(RequestRejected(status, reason)),
            status=status,
            content_type="application/json",
            headers={"Server": SERVER},
        )
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(
        self, handler: Handler, limits: GatewayLimits, on_disconnect: Callable[[object], None]
    ):
        def request_of(
            message: RawRequestMessage,
            payload: StreamReader,
            protocol: web.RequestHandler,
            writer: AbstractStreamWriter,
            task: "asyncio.Task[None]",
        ) -> web.Request:
            loop, most = asyncio.get_running_loop(), limits.body
            return web.Request(message, payload, protocol, writer, task, loop, client_max_size=most)

        super().__init__(handler, request_factory=request_of, handler_cancellation=True)  # type: ignore[arg-type]
        self._limits = limits
        self._on_disconnect = on_disconnect

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        self._on_disconnect(handler)

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # addresses hold keys
            max_headers=self._limits.headers,
            max_line_size=self._limits.header_bytes,
            max_field_size=self._limits.header_bytes,
            keepalive_timeout=self._limits.idle_seconds,
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,
        )


class Listener:
    """Accepts connections between `start` and `aclose`."""

    def __init__(
        self, handler: Handler, limits: GatewayLimits, *, on_disconnect: Callable[[object], None]
    ):
        """`on_disconnect` is called with each connection (a request's `protocol`) that is lost."""
        self._handler = handler
        self._on_disconnect = on_disconnect
        self._limits = limits
        self._runner: web.ServerRunner | None = None
        self._sites: list[web.BaseSite] = []
        self._handling: set[asyncio.Task[object]] = set()
        self.is_closing = False

    @property
    def in_flight(self) -> int:
        return len(self._handling)

    async def start(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        sock: socket.socket | None = None,
        paths: Sequence[Path] = (),
    ) -> int:
        """Starts to listen and returns the port. `sock` is a socket that already listens and may be
        shared with other processes. `paths` are the paths of Unix sockets to listen at, too."""
        server = _Server(self._handle, self._limits, self._on_disconnect)
        self._runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_SECONDS)
        await self._runner.setup()
        if sock is not None:
            self._sites.append(web.SockSite(self._runner, sock, ssl_context=tls))
        else:
            self._sites.append(web.TCPSite(self._runner, host, port, ssl_context=tls))
        for path in paths:
            # A killed worker leaves its socket file behind.
            path.unlink(missing_ok=True)
            self._sites.insert(0, web.UnixSite(self._runner, str(path)))
        try:
            for site in self._sites:
                await site.start()
        except OSError as error:
            await self._runner.cleanup()
            self._runner = None
            text = f"the gateway cannot listen at {host}, port {port}: {error.strerror}"
            raise UsageError(text) from error
        outside = [address for address in self._runner.addresses if not isinstance(address, str)]
        return int(outside[0][1])

    async def aclose(self) -> None:
        """Stops accepting connections, gives requests in flight their time to end, and cancels the
        rest."""
        self.is_closing = True
        if self._runner is None:
            return
        for site in self._sites:
            await site.stop()
        if self._handling:
            await asyncio.wait(self._handling, timeout=self._limits.drain_seconds)
        # Cancelled handlers may still clean up. When this returns, all have ended.
        while self._handling:
            for task in self._handling:
                task.cancel()
            await asyncio.wait(self._handling)
        await self._runner.cleanup()
        self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None, "a request is handled in a task"
        self._handling.add(task)
        try:
            return await self._handler(request)
        finally:
            self._handling.discard(task)
