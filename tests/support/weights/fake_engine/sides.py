"""The endpoints by which a trainer gives the fake engines their weights.

What vLLM answers to updates of its weights, right and wrong, is as it was recorded from vLLM 0.32.
"""

from pathlib import Path

from aiohttp import web
from msgspec import Struct, structs

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine import connection
from holdfast.testing.fake_engine.schedule import Schedule
from holdfast.testing.fake_engine.wires.sglang_admin import SGLangSide
from holdfast.testing.fake_engine.wires.vllm_admin import VllmSide
from holdfast.weights.carrier import this_device
from support.weights.fake_engine.sglang_groups import (
    SglangGroupInit,
    SglangGroupName,
    SglangGroups,
    SglangGroupUpdate,
    SglangOutcome,
)
from support.weights.fake_engine.transfer import FakeTransfer
from support.weights.fake_engine.weights import LoadedWeights, WeightedOptions, worker_failed


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


class SglangDiskUpdate(Struct):
    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True


class SglangAdapterName(Struct):
    lora_name: str


class SglangAdapterLoad(SglangAdapterName):
    lora_path: str


class WeightedVllm(VllmSide):
    def __init__(self, options: WeightedOptions, schedule: Schedule):
        super().__init__(options, schedule)
        self._weights: LoadedWeights = schedule.weights
        self._transfer = FakeTransfer(self._weights)
        self.device, self.dtype = options.weights.device, options.weights.dtype

    def add_to(self, router: web.UrlDispatcher) -> None:
        super().add_to(router)
        if self._weights.options.runtime_lora:
            router.add_post("/v1/load_lora_adapter", self._load_adapter)
            router.add_post("/v1/unload_lora_adapter", self._unload_adapter)

    def add_switches(self, router: web.UrlDispatcher) -> None:
        if not self._weights.options.dev_mode:
            return
        super().add_switches(router)
        router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        router.add_post("/collective_rpc", self._collective_rpc)
        router.add_get("/get_world_size", connection.answer_with(lambda: {"world_size": 1}))
        router.add_post("/init_weight_transfer_engine", self._init_transfer)
        router.add_post("/start_weight_update", self._start_update)
        router.add_post("/update_weights", self._update_weights)
        router.add_post("/finish_weight_update", self._finish_update)

    async def _pause(self, request: web.Request) -> web.Response:
        self._weights.reach("pause")
        return await super()._pause(request)

    async def _resume(self, request: web.Request) -> web.Response:
        self._weights.reach("resume")
        return await super()._resume(request)

    async def _update_weight_version(self, request: web.Request) -> web.Response:
        self._weights.reach("name")
        return await super()._update_weight_version(request)

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
            here = structs.replace(
                this_device(), kind=options.device, gpu=options.gpu, transfer=options.transfer
            )
            return connection.json_response({"results": [here]})
        elif body.method == "holdfast_loaded" and self._weights.options.worker:
            return connection.json_response({"results": [self._weights.fingerprint]})
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


class WeightedSGLang(SGLangSide):
    def __init__(self, options: WeightedOptions, schedule: Schedule):
        super().__init__(options, schedule)
        self._weights: LoadedWeights = schedule.weights
        self._groups = SglangGroups(self._weights)
        self.device, self.dtype = options.weights.device, options.weights.dtype

    def add_to(self, router: web.UrlDispatcher) -> None:
        super().add_to(router)
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

    async def _pause(self, request: web.Request) -> web.Response:
        self._weights.reach("pause")
        return await super()._pause(request)

    async def _continue(self, request: web.Request) -> web.Response:
        self._weights.reach("resume")
        return await super()._continue(request)

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
