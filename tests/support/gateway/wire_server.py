"""A server that only speaks: it parses with a wire, asks a function, and answers with the wire.

For client libraries to talk to over a real socket. It records what it was asked.
"""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from holdfast.gateway.protocol.messages import Answer, GenerationRequest, RequestRejected, Wire

Plain = Callable[[str, bytes], tuple[int, bytes]]
"""From the path and the body of a request to the status and the JSON of its answer."""


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WireHost:
    """`async with WireHost({"/v1/chat/completions": wire}, answer=fn) as url:`

    `url` is `http://127.0.0.1:PORT`, without a slash at its end. `answer` may raise
    `RequestRejected`. A stream begins with two keep-alives, as while a real answer is
    generated.
    `plain` are paths (aiohttp's patterns, any method) that are answered without a wire's exchange.
    Clients that block belong into `asyncio.to_thread`: the host runs in the caller's event loop.
    """

    def __init__(
        self,
        wires: Mapping[str, Wire],
        *,
        answer: Callable[[GenerationRequest], Answer],
        plain: Mapping[str, Plain] | None = None,
    ):
        self._answer = answer
        self.asks: list[GenerationRequest] = []
        """What was understood, in order."""
        self.bodies: list[bytes] = []
        """What was sent to the wires, in order, whether or not it was understood."""
        self.headers: list[dict[str, str]] = []
        """Of the same requests; the names in lower case."""
        app = web.Application(client_max_size=64 << 20)
        for path, wire in wires.items():
            app.router.add_post(path, self._exchange(wire))
        for path, handler in (plain or {}).items():
            app.router.add_route("*", path, self._plain(handler))
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def _exchange(self, wire: Wire) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            try:
                ask = wire.parse(body)
                self.asks.append(ask)
                answer = self._answer(ask)
            except RequestRejected as refused:
                return _json(refused.status, wire.format_error(refused))
            if ask.stream:
                return await _stream(request, wire, ask, answer)
            return _json(200, wire.format_answer(ask, answer))

        return handle

    def _plain(self, handler: Plain) -> _Handler:
        async def handle(request: web.Request) -> web.Response:
            return _json(*handler(request.path, await request.read()))

        return handle


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


async def _stream(
    request: web.Request, wire: Wire, ask: GenerationRequest, answer: Answer
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    for chunk in (wire.keep_alive(), wire.keep_alive(), *wire.stream(ask).end(answer)):
        await response.write(chunk)
    await response.write_eof()
    return response
