"""The HTTP routes for weights and pauses."""

import asyncio
import secrets
import threading
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from holdfast.embedded.http.parse_request import decode
from holdfast.embedded.model import weights
from holdfast.embedded.scheduler.engine import DecodeEngine, EngineStopped, PauseMode
from holdfast.engine_api import errors
from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.records.errors import UsageError
from holdfast.request_body import read_body

_Text = Annotated[str, Meta(min_length=1)]


class WeightUpdateRequest(Struct):
    """A request to load weights. `path` is a folder."""

    path: _Text
    version: _Text
    reset_cache: bool | None = None


class WeightRoutes:
    """The endpoints by which a trainer steers the engine."""

    def __init__(self, engine: DecodeEngine):
        self._engine = engine
        # Updates run one at a time, so that the last requested one remains. A thread lock, because
        # an update continues after its client has left.
        self._updating = threading.Lock()
        self._incarnation = secrets.token_hex(8)
        """The id of this start of the engine. Weights that were sent to another start are not in
        this one."""

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_post("/update_weights_from_disk", self._update)
        router.add_get("/weight_version", self._version)
        router.add_get("/weight_info", self._version)
        router.add_post("/pause", self._pause)
        router.add_post("/resume", self._resume)
        router.add_get("/is_paused", self._is_paused)

    async def _update(self, request: web.Request) -> web.Response:
        body = decode(await read_body(request), WeightUpdateRequest)
        # Shielded, so that a client that leaves does not interrupt the update.
        await asyncio.shield(asyncio.to_thread(self._apply, body))
        return json_response({"success": True, "weight_version": body.version})

    def _apply(self, body: WeightUpdateRequest) -> None:
        try:
            with self._updating:
                state = weights.read_converted(self._engine.model.network, Path(body.path))
                reset = bool(body.reset_cache)
                self._engine.update_weights(state, body.version, reset_cache=reset)
        except UsageError as error:
            raise EngineRequestRejected(400, str(error), param="path") from error
        except EngineStopped as error:
            raise errors.engine_failed(str(error)) from error

    async def _version(self, request: web.Request) -> web.Response:
        return json_response(
            {"weight_version": self._engine.version, "incarnation": self._incarnation}
        )

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", PauseMode.ABORT)
        if mode not in list(PauseMode):
            raise errors.invalid_parameter("mode", "abort, wait or keep", mode)
        await asyncio.wrap_future(self._engine.pause(PauseMode(mode)))
        return json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        await asyncio.wrap_future(self._engine.resume())
        return json_response({"status": "resumed"})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return json_response({"is_paused": self._engine.paused})


def json_response(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
