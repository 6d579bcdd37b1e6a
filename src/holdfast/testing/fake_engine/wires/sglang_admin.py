"""SGLang's other endpoints: its description, and its switches for training.

The keys follow SGLang's sources and documentation of 2026. `/get_model_info` and `/get_server_info`
are older names of endpoints that still work.
"""

from typing import Literal

from aiohttp import web
from msgspec import Struct

from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine import connection
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.schedule import Schedule


class Abort(Struct):
    rid: str = ""
    abort_all: bool = False


class SglangPause(Struct):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class SglangWeightUpdate(Struct):
    new_version: str
    abort_all_requests: bool = True


class SGLangSide:
    device = "cpu"
    dtype = "float32"

    def __init__(self, options: FakeOptions, schedule: Schedule):
        self._options = options
        self._schedule = schedule

    def add_to(self, router: web.UrlDispatcher) -> None:
        for path in ("/model_info", "/get_model_info"):
            router.add_get(path, connection.answer_with(self._model_info))
        for path in ("/server_info", "/get_server_info"):
            router.add_get(path, connection.answer_with(self._server_info))
        router.add_get("/health_generate", self._health_generate)
        router.add_post("/abort_request", self._abort_request)
        router.add_post("/pause_generation", self._pause)
        router.add_post("/continue_generation", self._continue)
        router.add_post("/update_weight_version", self._update_weight_version)

    def _model_info(self) -> object:
        return {
            "model_path": self._options.model,
            "served_model_name": self._options.model,
            "tokenizer_path": self._options.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self._schedule.version,
            "load_format": "auto",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "fake",
            "architectures": ["FakeForCausalLM"],
        }

    def _server_info(self) -> object:
        limit = self._options.max_model_len
        return {
            "model_path": self._options.model,
            "served_model_name": self._options.model,
            "context_length": limit,
            "weight_version": self._schedule.version,
            "incremental_streaming_output": self._options.incremental_stream,
            "enable_deterministic_inference": self._options.seeds == "position",
            "status": "ready",
            "max_total_num_tokens": limit,
            "max_req_input_len": limit - 1,
            "version": "0.5.10",
            "device": self.device,
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "dtype": self.dtype,
        }

    async def _health_generate(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._schedule.paused else 200)

    async def _abort_request(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), Abort)
        if body.abort_all or body.rid:
            await self._schedule.abort(None if body.abort_all else [body.rid])
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangPause)
        await self._schedule.pause("abort" if body.mode == "abort" else "keep")
        return connection.json_response(
            {"message": "Generation paused successfully.", "status": "ok"}
        )

    async def _continue(self, request: web.Request) -> web.Response:
        await self._schedule.resume()
        return connection.json_response(
            {"message": "Generation continued successfully.", "status": "ok"}
        )

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangWeightUpdate)
        if body.abort_all_requests:
            await self._schedule.abort()
        self._schedule.version = body.new_version
        message = f"Weight version updated to {body.new_version}"
        return connection.json_response(
            {"success": True, "message": message, "new_version": body.new_version}
        )
