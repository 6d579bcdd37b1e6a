"""Gateway: the HTTP side. Finds the trajectory of a call, lets its wire read it, and tells the
answer, as JSON or as a stream, once it is durable."""

import asyncio
import logging
from typing import Any

from aiohttp import web
from msgspec import Struct

from holdfast.gateway.exchange import Answer, Ask, Refused, Wire
from holdfast.gateway.keys import Bearer, Keys
from holdfast.gateway.trajectory import AgentTrajectory, Hearing
from holdfast.gateway.wires import openai_errors
from holdfast.records.errors import (
    BadRequest,
    ContextOverflow,
    HoldfastError,
    RunStopped,
    Truncated,
)
from holdfast.records.redaction import redact

MAX_BODY = 64 * 1024 * 1024
PING_SECONDS = 10.0
_log = logging.getLogger("holdfast.gateway")


class Binding(Struct, frozen=True):
    """Where an agent finds its trajectory."""

    url: str
    """Without a key in it: `…/v1` is the base URL of OpenAI clients, `…` that of Anthropic's."""
    key: str
    bound_url: str
    """With the key in its path, for clients that cannot set one."""


class Gateway:
    """Serves the trajectories that are bound to it; use it as an async context manager."""

    def __init__(
        self, wires: "dict[str, Wire]", *, host: str = "127.0.0.1", port: int = 0, model: str = ""
    ):
        self._wires = wires
        self._host, self._port = host, port
        self._model = model
        self._keys = Keys()
        self._bound: dict[str, AgentTrajectory] = {}
        """By key."""
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "Gateway":
        app = web.Application(client_max_size=MAX_BODY)
        for path, wire in self._wires.items():
            for prefix in ("", "/t/{key}"):
                app.router.add_post(f"{prefix}{path}", self._handler(path, wire))
        for prefix in ("", "/t/{key}"):
            app.router.add_post(f"{prefix}/complete", self._complete)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        assert site._server is not None  # noqa: SLF001  # aiohttp tells the port nowhere else
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # noqa: SLF001
        self.url = f"http://{self._host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def bind(self, trajectory: AgentTrajectory) -> Binding:
        session = trajectory.session
        bearer = Bearer(trajectory.name, session.lease.epoch, len(session.history.attempts))
        key = self._keys.make(bearer)
        self._bound[key] = trajectory
        return Binding(self.url, key, f"{self.url}/t/{key}")

    def release(self, binding: Binding) -> None:
        self._bound.pop(binding.key, None)

    # --- requests

    def _handler(self, path: str, wire: Wire) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                trajectory = self._trajectory(request)
                ask = wire.ask(await request.read())
                hearing = await trajectory.hear(
                    ask,
                    wire=path,
                    again=request.headers.get("x-stainless-retry-count", "0") not in ("", "0"),
                    name=request.headers.get("idempotency-key", ""),
                )
            except Refused as refused:
                return _json(wire.refusal(refused), refused.status)
            return await self._tell(request, wire, ask, hearing)

        return handle

    async def _tell(
        self, request: web.Request, wire: Wire, ask: Ask, hearing: Hearing
    ) -> web.StreamResponse:
        delivered = False
        try:
            if ask.stream:
                response = await self._stream(request, wire, ask, hearing)
            else:
                answer = await _answered(hearing)
                response = _json(wire.answer(ask, answer))
                await response.prepare(request)
                await response.write_eof()
            delivered = True
        except Refused as refused:
            return _json(wire.refusal(refused), refused.status)
        finally:
            hearing.leave(delivered=delivered)
        return response

    async def _stream(
        self, request: web.Request, wire: Wire, ask: Ask, hearing: Hearing
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        # What can be refused at once is refused with its status, not in a stream of 200.
        await hearing.wait(PING_SECONDS)
        if hearing.is_ready:
            events = wire.events(ask, await _answered(hearing))
            await response.prepare(request)
        else:
            await response.prepare(request)
            while not await hearing.wait(PING_SECONDS):
                await response.write(wire.keep_alive())
            events = await self._events(wire, ask, hearing)
        for event in events:
            await response.write(event)
        await response.write_eof()
        return response

    async def _events(self, wire: Wire, ask: Ask, hearing: Hearing) -> list[bytes]:
        try:
            return wire.events(ask, await _answered(hearing))
        except Refused as refused:
            return [b"event: error\ndata: " + wire.refusal(refused) + b"\n\n"]

    def _trajectory(self, request: web.Request) -> AgentTrajectory:
        key = request.match_info.get("key") or _key_in(request)
        trajectory = self._bound.get(key)
        if trajectory is not None:
            return trajectory
        if self._keys.read(key) is not None:
            raise Refused(409, "the attempt that this key belongs to is over", code="attempt_over")
        raise Refused(401, "no such key: give the one that belongs to the trajectory")

    async def _complete(self, request: web.Request) -> web.Response:
        """`POST /complete {"reward": 0.5}`: the agent is done. Saying it again changes nothing."""
        try:
            trajectory = self._trajectory(request)
            if not trajectory.completed.is_set():
                trajectory.reward = _reward(await request.read())
                trajectory.completed.set()
        except Refused as refused:
            return _json(openai_errors.encoded(refused), refused.status)
        return web.json_response({"completed": True, "reward": trajectory.reward})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "trajectories": len(self._bound)})


def _key_in(request: web.Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


async def _answered(hearing: Hearing) -> Answer:
    """The answer, or why there is none, as the agent is told."""
    try:
        return await hearing.answer()
    except ContextOverflow as limit:
        raise Refused(400, str(limit), code="context_length_exceeded") from limit
    except Truncated as limit:
        raise Refused(400, str(limit), code=limit.reason) from limit
    except BadRequest as error:
        raise Refused(400, redact(str(error))) from error
    except RunStopped as error:
        raise Refused(503, str(error), code="stopping") from error
    except HoldfastError as error:
        _log.warning("a call could not be answered: %s", redact(str(error)))
        raise Refused(503, redact(str(error)), code="engine") from error
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise Refused(409, "this attempt is over", code="attempt_over") from None


def _reward(body: bytes) -> float | None:
    import msgspec

    if not body.strip():
        return None
    try:
        found = msgspec.json.decode(body, type=dict[str, float | None])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(400, f'it wants {{"reward": number}}: {error}') from error
    if unknown := sorted(found.keys() - {"reward"}):
        raise Refused(400, f"unknown field {unknown[0]!r}", param=unknown[0])
    return found.get("reward")


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
