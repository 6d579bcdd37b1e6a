"""SGLang's other endpoints: its description, and its switches for training.

Keys as in its sources and documentation of 2026; `/get_model_info` and `/get_server_info` are the
older names that it still answers to.
"""

from pathlib import Path
from typing import Literal

from aiohttp import web
from msgspec import Struct

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine import connection
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.schedule import Schedule
from holdfast.testing.fake_engine.wires.sglang_groups import (
    SglangGroupInit,
    SglangGroupName,
    SglangGroups,
    SglangGroupUpdate,
    SglangOutcome,
)


class Abort(Struct):
    rid: str = ""
    abort_all: bool = False


class SglangPause(Struct):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class SglangWeightUpdate(Struct):
    new_version: str
    abort_all_requests: bool = True


class SglangDiskUpdate(Struct):
    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True


class SglangAdapterName(Struct):
    lora_name: str


class SglangAdapterLoad(SglangAdapterName):
    lora_path: str


class SGLangSide:
    def __init__(self, options: FakeOptions, schedule: Schedule):
        self._options = options
        self._schedule = schedule
        self._weights = schedule.weights
        self._groups = SglangGroups(schedule.weights)

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
        router.add_post("/flush_cache", self._flush_cache)
        router.add_post("/update_weights_from_disk", self._update_from_disk)
        router.add_post("/init_weights_update_group", self._init_group)
        router.add_post("/destroy_weights_update_group", self._destroy_group)
        router.add_post("/update_weights_from_distributed", self._update_from_distributed)
        if self._weights.options.sessions:
            router.add_post("/begin_weight_update", self._begin_update)
            router.add_post("/end_weight_update", self._end_update)
        if self._weights.options.max_lora_rank:
            router.add_post("/load_lora_adapter", self._load_adapter)
            router.add_post("/unload_lora_adapter", self._unload_adapter)

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
            "device": self._weights.options.device,
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "dtype": self._weights.options.dtype,
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
        self._weights.reach("pause")
        await self._schedule.pause("abort" if body.mode == "abort" else "keep")
        return connection.json_response(
            {"message": "Generation paused successfully.", "status": "ok"}
        )

    async def _continue(self, request: web.Request) -> web.Response:
        self._weights.reach("resume")
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

    # --- weights

    async def _flush_cache(self, request: web.Request) -> web.Response:
        """Fails while requests run; those of a pause that retracts hold nothing of it."""
        self._weights.reach("reset")
        if self._schedule.running and not self._schedule.paused:
            return web.Response(status=400, text="Flush cache failed: requests are running.")
        self._weights.reset_cache()
        return web.Response(text="Cache flushed.\nPlease check backend logs for more details.\n")

    async def _update_from_disk(self, request: web.Request) -> web.Response:
        """A failure is answered with 400 and `success: false`; older ones said 200."""
        body = decode(await request.read(), SglangDiskUpdate)
        try:
            self._weights.load(Path(body.model_path), fixes_head=True)
        except EngineRequestRejected as error:
            return _result(success=False, message=f"Failed to update weights: {error}")
        if body.flush_cache:
            self._weights.reset_cache()
        self._schedule.version = body.weight_version or self._schedule.version
        return _result(success=True, message="Succeeded to update model weights.")

    async def _init_group(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangGroupInit)
        return _outcome(await self._groups.init(body))

    async def _destroy_group(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangGroupName)
        return _outcome(self._groups.destroy(body.group_name))

    async def _begin_update(self, request: web.Request) -> web.Response:
        return _outcome(self._groups.begin())

    async def _end_update(self, request: web.Request) -> web.Response:
        return _outcome(self._groups.end())

    async def _update_from_distributed(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangGroupUpdate)
        outcome = await self._groups.update(body)
        if outcome.success and body.flush_cache:
            self._weights.reset_cache()
        if outcome.success and body.weight_version is not None:
            self._schedule.version = body.weight_version
        return _outcome(outcome)

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangAdapterLoad)
        self._weights.load_adapter(body.lora_name, Path(body.lora_path))
        return connection.json_response(self._adapters())

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), SglangAdapterName)
        self._weights.unload_adapter(body.lora_name)
        return connection.json_response(self._adapters())

    def _adapters(self) -> object:
        loaded = {name: str(folder) for name, folder in self._weights.adapters.items()}
        return {"success": True, "error_message": "", "loaded_adapters": loaded}


def _outcome(outcome: SglangOutcome) -> web.Response:
    return _result(success=outcome.success, message=outcome.message)


def _result(*, success: bool, message: str) -> web.Response:
    body = {"success": success, "message": message, "num_paused_requests": 0}
    return web.Response(
        status=200 if success else 400,
        body=connection.encode(body),
        content_type="application/json",
    )
