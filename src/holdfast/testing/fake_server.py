"""The HTTP side of the fake engine.

It draws one sample per request and does not stream; asked for more, it answers 400. A client that
goes away stops its request, as in vLLM. The process ends when the one that started it does.
"""

import asyncio
import os
import random
import socket
import struct
import sys
import time
import uuid

import msgspec
from aiohttp import web

from holdfast.testing import fake_wire as wire
from holdfast.testing.fake_tokens import OutOfVocabulary, Sampler, pack
from holdfast.testing.faults import Fault, FaultKind, FaultPlan

MAX_BODY = 1 << 28
PARENT_POLL = 0.5
# Below the ports that systems give to outgoing connections: while a killed engine is away, no
# client can be given its port and keep it from coming back.
PORTS = range(20_000, 32_000)
PORT_TRIES = 100

_STATUS = {
    FaultKind.RATE_LIMIT: (429, "TooManyRequestsError", "Too many requests"),
    FaultKind.ERROR_500: (500, "InternalServerError", "EngineCore encountered an issue"),
    FaultKind.UNAVAILABLE: (503, "ServiceUnavailableError", "The engine is not available"),
}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(wire.Body)


class FakeServer:
    """One engine: its options, its fault plan and its counters."""

    def __init__(self, options: wire.Options):
        self._options = options
        self._sampler = Sampler(options.mean_length, options.replies)
        self._plan = FaultPlan(options.faults)
        self._stats = wire.Stats()
        self._arrivals: list[str] = []
        self._in_flight = 0
        self._created = int(time.time())

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/stats", self._show_stats)
        app.router.add_get("/requests", self._show_requests)
        app.router.add_post("/reset", self._reset)
        app.router.add_post("/faults", self._set_faults)
        return app

    # --- the work

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        self._arrivals.append(request_id)
        self._stats.requests += 1
        fault = self._plan.strike(request_id)
        if fault is not None:
            faults = self._stats.faults
            faults[fault.kind] = faults.get(fault.kind, 0) + 1
        self._in_flight += 1
        try:
            return await self._serve(request, request_id, fault)
        except wire.Refused as refusal:
            return _refusal(refusal)
        finally:
            self._in_flight -= 1

    async def _serve(
        self, request: web.Request, request_id: str, fault: Fault | None
    ) -> web.StreamResponse:
        raw = await request.read()
        if fault is not None and (early := await self._instead(request, fault)) is not None:
            return early
        answer = self._answer(raw, request_id)
        seconds = self._options.delay + (fault.seconds if fault is not None else 0.0)
        if seconds:
            await asyncio.sleep(seconds)
        if fault is not None:
            return await self._spoiled(request, answer, fault.kind)
        self._count(answer)
        return _json(_encoder.encode(answer))

    async def _instead(self, request: web.Request, fault: Fault) -> web.StreamResponse | None:
        """The faults that happen instead of the work."""
        if fault.kind in _STATUS:
            status, kind, message = _STATUS[fault.kind]
            response = _refusal(wire.Refused(status, message, kind=kind))
            if fault.retry_after is not None:
                response.headers["Retry-After"] = f"{fault.retry_after:g}"
            return response
        if fault.kind == FaultKind.CONTEXT_OVERFLOW:
            raise wire.too_long(self._options.max_model_len, self._options.max_model_len + 1, 0)
        if fault.kind == FaultKind.HANG:
            await asyncio.sleep(fault.seconds or 1e9)
            return _reset_connection(request)
        return _reset_connection(request) if fault.kind == FaultKind.RESET_BEFORE else None

    def _answer(self, raw: bytes, request_id: str) -> wire.Answer:
        body = self._parsed(raw)
        drawn = self._sampler.draw(self._prompt(body), body.seed_or_chance, body.limits)
        return wire.answer(body, drawn, request_id)

    def _parsed(self, raw: bytes) -> wire.Body:
        try:
            body = _decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise wire.malformed(error) from error
        if body.model != self._options.model:
            raise wire.unknown_model(body.model, self._options.model)
        if body.temperature < 0:
            raise wire.bad_parameter("temperature", "non-negative", body.temperature)
        if body.max_tokens < 1:
            raise wire.bad_parameter("max_tokens", "at least 1", body.max_tokens)
        if body.n != 1 or body.stream:
            raise wire.Refused(400, "The fake engine draws one sample and never streams")
        return body

    def _prompt(self, body: wire.Body) -> bytes:
        limit = self._options.max_model_len
        if len(body.prompt) + body.max_tokens > limit:
            raise wire.too_long(limit, len(body.prompt), body.max_tokens)
        if not body.prompt:
            raise wire.Refused(400, "The decoder prompt cannot be empty", param="prompt")
        try:
            return pack(body.prompt)
        except OutOfVocabulary as error:
            raise wire.Refused(400, str(error)) from error

    async def _spoiled(
        self, request: web.Request, answer: wire.Answer, kind: FaultKind
    ) -> web.StreamResponse:
        wire.spoil(answer, kind)
        self._count(answer)
        if kind == FaultKind.RESET_AFTER:
            return _reset_connection(request)
        body = wire.spoiled_bytes(_encoder.encode(answer), kind)
        if kind == FaultKind.TRUNCATED_BODY:
            return await _truncated(request, body)
        return _json(body)

    def _count(self, answer: wire.Answer) -> None:
        self._stats.completions += answer.choices[0].finish_reason != "abort"
        self._stats.tokens += answer.usage.completion_tokens

    # --- beside the work

    async def _models(self, request: web.Request) -> web.Response:
        return _json(wire.models(self._options, created=self._created))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _show_stats(self, request: web.Request) -> web.Response:
        self._stats.in_flight = self._in_flight
        return _json(_encoder.encode(self._stats))

    async def _show_requests(self, request: web.Request) -> web.Response:
        return _json(_encoder.encode([(one, n) for n, one in enumerate(self._arrivals)]))

    async def _reset(self, request: web.Request) -> web.Response:
        self._stats = wire.Stats()
        self._arrivals = []
        return _json(b"{}")

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            faults = msgspec.json.decode(await request.read(), type=list[Fault])
        except msgspec.MsgspecError as error:
            return _refusal(wire.malformed(error))
        self._plan = FaultPlan(faults)
        return _json(b"{}")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _refusal(refusal: wire.Refused) -> web.Response:
    response = _json(refusal.encoded())
    response.set_status(refusal.status)
    return response


def _reset_connection(request: web.Request) -> web.Response:
    """The client gets a TCP reset, not the polite end that a plain close would send."""
    transport = request.transport
    if transport is not None:
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
    return web.Response()


async def _truncated(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = "application/json"
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


# --- the process


async def serve(options: wire.Options, *, port: int, parent: int | None) -> None:
    """Serves until cancelled, or until `parent` is no longer the parent of this process."""
    runner = web.AppRunner(
        FakeServer(options).application(), access_log=None, handler_cancellation=True
    )
    await runner.setup()
    listening = _listen(port)
    await web.SockSite(runner, listening, backlog=4096).start()
    sys.stdout.write(f"ready http://127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110  # no event tells of it
        await asyncio.sleep(PARENT_POLL)
    # Nothing is left to say to anyone; hanging requests would hold up an orderly end.
    os._exit(0)


def _listen(port: int) -> socket.socket:
    candidates = [port] if port else random.sample(PORTS, PORT_TRIES)
    for candidate in candidates[:-1]:
        try:
            return _bound(candidate)
        except OSError:
            continue
    return _bound(candidates[-1])


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        # On Linux two sockets may bind one address with SO_REUSEADDR; only one can listen.
        listening.listen(4096)
    except OSError:
        listening.close()
        raise
    return listening
