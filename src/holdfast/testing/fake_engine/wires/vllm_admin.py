"""vLLM's other endpoints: its version and load, adapters, and the switches of its development mode.

What it answers to updates of its weights, right and wrong, is as it was recorded from vLLM 0.32.
"""

from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct, structs

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine import connection
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.schedule import PAUSE_MODES, PauseMode, Schedule
from holdfast.testing.fake_engine.transfer import FakeTransfer
from holdfast.testing.fake_engine.weights import worker_failed
from holdfast.testing.fake_engine.wires import models
from holdfast.weights.carrier import this_device


class VllmWeightUpdate(Struct):
    new_version: str


class Aborted(Struct):
    request_ids: list[str] | None = None


class CollectiveCall(Struct):
    method: str
    kwargs: dict[str, str] = {}


class TransferInit(Struct):
    init_info: dict[str, object]


class TransferUpdate(Struct):
    update_info: dict[str, object]


class TransferFinish(Struct):
    weight_version: str | None = None


class AdapterName(Struct):
    lora_name: str


class AdapterLoad(AdapterName):
    lora_path: str


class VllmSide:
    def __init__(self, options: FakeOptions, schedule: Schedule):
        self._options = options
        self._schedule = schedule
        self._weights = schedule.weights
        self._transfer = FakeTransfer(schedule.weights)

    def add_to(self, router: web.UrlDispatcher) -> None:
        answer_with = connection.answer_with
        router.add_get("/version", answer_with(lambda: {"version": models.VLLM_VERSION}))
        router.add_get("/metrics", self._metrics)
        router.add_get("/load", answer_with(self._load))
        router.add_get("/server_info", answer_with(self._server_info))
        if self._weights.options.runtime_lora:
            router.add_post("/v1/load_lora_adapter", self._load_adapter)
            router.add_post("/v1/unload_lora_adapter", self._unload_adapter)
        if self._weights.options.dev_mode:
            self._add_switches(router)

    def _add_switches(self, router: web.UrlDispatcher) -> None:
        answer_with = connection.answer_with
        router.add_get(
            "/weight_info", answer_with(lambda: {"weight_version": self._schedule.version})
        )
        router.add_get("/is_paused", answer_with(lambda: {"is_paused": self._schedule.paused}))
        router.add_post("/pause", self._pause)
        router.add_post("/resume", self._resume)
        router.add_post("/abort_requests", self._abort_requests)
        router.add_post("/update_weight_version", self._update_weight_version)
        router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        router.add_post("/collective_rpc", self._collective_rpc)
        router.add_get("/get_world_size", answer_with(lambda: {"world_size": 1}))
        router.add_post("/init_weight_transfer_engine", self._init_transfer)
        router.add_post("/start_weight_update", self._start_update)
        router.add_post("/update_weights", self._update_weights)
        router.add_post("/finish_weight_update", self._finish_update)

    async def _metrics(self, request: web.Request) -> web.Response:
        gauges = {
            "running": ("in model execution batches", self._schedule.running),
            "waiting": ("waiting to be processed", self._schedule.waiting),
        }
        lines: list[str] = []
        for name, (what, value) in gauges.items():
            metric = f"vllm:num_requests_{name}"
            lines.append(f"# HELP {metric} Number of requests {what}.")
            lines.append(f"# TYPE {metric} gauge")
            lines.append(f'{metric}{{engine="0",model_name="{self._options.model}"}} {value:.1f}')
        return web.Response(text="\n".join(lines) + "\n")

    def _load(self) -> object:
        return {"server_load": self._schedule.running + self._schedule.waiting}

    def _server_info(self) -> object:
        options = self._weights.options
        served = (
            f"model='{self._options.model}', dtype=torch.{options.dtype}, "
            f"max_seq_len={self._options.max_model_len}, device_config={options.device}"
        )
        return {"vllm_config": served}

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in PAUSE_MODES:
            message = f"mode must be one of {', '.join(PAUSE_MODES)}, not {mode!r}"
            raise EngineRequestRejected(400, message, param="query.mode")
        self._weights.reach("pause")
        await self._schedule.pause(msgspec.convert(mode, PauseMode))
        return connection.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self._weights.reach("resume")
        await self._schedule.resume()
        return connection.json_response({"status": "resumed"})

    async def _abort_requests(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), Aborted)
        found = await self._schedule.abort(body.request_ids or None)
        # vLLM counts the ids of the request, not those that it found.
        aborted = len(body.request_ids) if body.request_ids else found
        return connection.json_response({"status": "aborted", "aborted": aborted})

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), VllmWeightUpdate)
        self._weights.reach("name")
        self._schedule.version = body.new_version
        return connection.json_response({"success": True, "new_version": body.new_version})

    # --- weights

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        """Fails while requests hold blocks of it, unless they are to be computed again."""
        self._weights.reach("reset")
        forced = request.query.get("reset_running_requests") == "true"
        done = forced or not self._schedule.running
        if done:
            self._weights.reset_cache()
        return connection.json_response({"success": done})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), CollectiveCall)
        path = body.kwargs.get("weights_path", "")
        if body.method == "reload_weights":
            self._weights.load(Path(path), fixes_head=False)
        elif body.method == "holdfast_load" and self._weights.options.worker:
            self._weights.load(Path(path), fixes_head=True)
        elif body.method == "holdfast_describe" and self._weights.options.worker:
            options = self._weights.options
            here = structs.replace(this_device(), kind=options.device, gpu=options.gpu)
            return connection.json_response({"results": [here]})
        else:
            raise worker_failed(f"'Worker' object has no attribute '{body.method}'")
        return connection.json_response({"results": [None]})

    async def _init_transfer(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), TransferInit)
        await self._transfer.init(body.init_info)
        return connection.json_response({"message": "Weight transfer initialized"})

    async def _start_update(self, request: web.Request) -> web.Response:
        self._transfer.start()
        return connection.json_response({"message": "Weight update started"})

    async def _update_weights(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), TransferUpdate)
        await self._transfer.update(body.update_info)
        return connection.json_response({"message": "Weights updated"})

    async def _finish_update(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), TransferFinish)
        self._transfer.finish()
        self._schedule.version = body.weight_version or self._schedule.version
        return connection.json_response({"message": "Weight update finished"})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), AdapterLoad)
        self._weights.load_adapter(body.lora_name, Path(body.lora_path))
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), AdapterName)
        self._weights.unload_adapter(body.lora_name)
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")
