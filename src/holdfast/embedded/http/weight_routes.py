"""Weights and pauses over HTTP."""

import asyncio
import threading
from pathlib import Path

import msgspec
from aiohttp import web

from holdfast.embedded.http import errors
from holdfast.embedded.http.errors import EngineRequestRejected, bad, malformed
from holdfast.embedded.http.parse_fields import FieldReader
from holdfast.embedded.model import weights
from holdfast.embedded.scheduler.engine import DecodeEngine, EngineStopped, PauseMode
from holdfast.records.errors import UsageError


class Control:
    """The endpoints by which a trainer steers the engine."""

    def __init__(self, engine: DecodeEngine):
        self._engine = engine
        # One update at a time, so that the last one asked for is the one in force. A lock between
        # threads, since an update goes on when its client has left.
        self._updating = threading.Lock()

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_post("/update_weights_from_disk", self._update)
        router.add_get("/weight_version", self._version)
        router.add_get("/weight_info", self._version)
        router.add_post("/pause", self._pause)
        router.add_post("/resume", self._resume)
        router.add_get("/is_paused", self._is_paused)

    async def _update(self, request: web.Request) -> web.Response:
        body = FieldReader.parsed(await request.read())
        path, version = body.take("path"), body.take("version")
        if not isinstance(path, str) or not path:
            raise malformed("path", "Input should be the path of a folder")
        if not isinstance(version, str) or not version:
            raise malformed("version", "Input should be a string that is not empty")
        reset = body.flag("reset_cache")
        body.finish()
        # Shielded: a client that leaves half-way does not leave it undecided.
        await asyncio.shield(asyncio.to_thread(self._apply, Path(path), version, reset=reset))
        return _json({"success": True, "weight_version": version})

    def _apply(self, path: Path, version: str, *, reset: bool) -> None:
        try:
            with self._updating:
                state = weights.converted(self._engine.model.network, path)
                self._engine.update_weights(state, version, reset_cache=reset)
        except UsageError as error:
            raise EngineRequestRejected(400, str(error), param="path") from error
        except EngineStopped as error:
            raise errors.broken(str(error)) from error

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"weight_version": self._engine.version})

    async def _pause(self, request: web.Request) -> web.Response:
        asked = request.query.get("mode", PauseMode.ABORT)
        if asked not in list(PauseMode):
            raise bad("mode", "abort, wait or keep", asked)
        await asyncio.wrap_future(self._engine.pause(PauseMode(asked)))
        return _json({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        await asyncio.wrap_future(self._engine.resume())
        return _json({"status": "resumed"})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return _json({"is_paused": self._engine.paused})


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
