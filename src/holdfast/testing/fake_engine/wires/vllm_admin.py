"""vLLM's other endpoints: its version and load, and the switches of its development mode."""

import time

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine import connection
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.schedule import PAUSE_MODES, PauseMode, Schedule
from holdfast.testing.fake_engine.wires import models


class VllmWeightUpdate(Struct):
    new_version: str


class Aborted(Struct):
    request_ids: list[str] | None = None


class VllmSide:
    device = "cpu"
    dtype = "float32"

    def __init__(self, options: FakeOptions, schedule: Schedule):
        self._options = options
        self._schedule = schedule
        self._started = time.time()

    def add_to(self, router: web.UrlDispatcher) -> None:
        answer_with = connection.answer_with
        router.add_get("/version", answer_with(lambda: {"version": models.VLLM_VERSION}))
        router.add_get("/metrics", self._metrics)
        router.add_get("/load", answer_with(self._load))
        router.add_get("/server_info", answer_with(self._server_info))
        self.add_switches(router)

    def add_switches(self, router: web.UrlDispatcher) -> None:
        answer_with = connection.answer_with
        router.add_get(
            "/weight_info", answer_with(lambda: {"weight_version": self._schedule.version})
        )
        router.add_get("/is_paused", answer_with(lambda: {"is_paused": self._schedule.paused}))
        router.add_post("/pause", self._pause)
        router.add_post("/resume", self._resume)
        router.add_post("/abort_requests", self._abort_requests)
        router.add_post("/update_weight_version", self._update_weight_version)

    async def _metrics(self, request: web.Request) -> web.Response:
        gauges = {
            "running": ("in model execution batches", self._schedule.running),
            "waiting": ("waiting to be processed", self._schedule.waiting),
        }
        lines = [f"process_start_time_seconds {self._started!r}"]
        for name, (what, value) in gauges.items():
            metric = f"vllm:num_requests_{name}"
            lines.append(f"# HELP {metric} Number of requests {what}.")
            lines.append(f"# TYPE {metric} gauge")
            lines.append(f'{metric}{{engine="0",model_name="{self._options.model}"}} {value:.1f}')
        return web.Response(text="\n".join(lines) + "\n")

    def _load(self) -> object:
        return {"server_load": self._schedule.running + self._schedule.waiting}

    def _server_info(self) -> object:
        served = (
            f"model='{self._options.model}', dtype=torch.{self.dtype}, "
            f"max_seq_len={self._options.max_model_len}, device_config={self.device}"
        )
        return {"vllm_config": served}

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in PAUSE_MODES:
            message = f"mode must be one of {', '.join(PAUSE_MODES)}, not {mode!r}"
            raise EngineRequestRejected(400, message, param="query.mode")
        await self._schedule.pause(msgspec.convert(mode, PauseMode))
        return connection.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        await self._schedule.resume()
        return connection.json_response({"status": "resumed"})

    async def _abort_requests(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), Aborted)
        number = await self._schedule.abort(body.request_ids or None)
        # vLLM counts the ids in the request, not those that it found.
        aborted = len(body.request_ids) if body.request_ids else number
        return connection.json_response({"status": "aborted", "aborted": aborted})

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), VllmWeightUpdate)
        self._schedule.version = body.new_version
        return connection.json_response({"success": True, "new_version": body.new_version})
