"""The requests that a training sends to one engine: pause, resume, prefix cache, version and
errors.

Each kind of engine has its own endpoints for them; here they have one interface. Every request has
a deadline, and the error of a failed request quotes the engine's answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

import msgspec

from holdfast.policy.client.endpoint import Denied, Endpoint
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import UNFINISHED
from holdfast.records.errors import EndpointDown, HoldfastError
from holdfast.weights.carrier import Device
from holdfast.weights.version import WeightsNotTaken

SWITCH_SECONDS = 60.0
"""The deadline of a request that moves no weights, in seconds."""
UPDATE_SECONDS = 600.0
"""The deadline of a request that makes an engine read a model, in seconds. Large models take
minutes."""
NO_ROUTE = (403, 404, 405, 501)
DEV_MODE = "start it with VLLM_SERVER_DEV_MODE=1"


class EngineKind(StrEnum):
    """The program that an engine runs. The values are the names of the programs."""

    EMBEDDED = "holdfast"
    VLLM = "vLLM"
    SGLANG = "SGLang"
    OTHER = "engine"


class TransferBackend(StrEnum):
    """The transfer backend with which vLLM was started, by `--weight-transfer-config`."""

    NO_ROUTE = "no route"
    NONE = "none"
    HOLDFAST = "holdfast"
    """The backend of `vllm_worker`."""
    NCCL = "nccl"
    OTHER = "other"


_BACKENDS = {
    "not configured": TransferBackend.NONE,
    "for HoldfastWeightTransferEngine": TransferBackend.HOLDFAST,
    "for NCCLWeightTransferEngine": TransferBackend.NCCL,
}


class Replica:
    """The client for the administration of one engine."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self.name = endpoint.name
        self.release = ""
        """The engine's version number, once `describe` has asked for it."""
        self.dtype = ""
        """The data type of the engine's model, if the engine reports it."""
        self.device = ""
        """`cpu` or `cuda`, if the engine reports it."""
        self.transfer = TransferBackend.NONE
        self.workers: tuple[Device, ...] = ()
        """The device of each worker, for a vLLM with Holdfast's worker extension."""
        self.world_size = 1
        """The number of the engine's worker processes."""
        self.is_divided = False
        """Whether SGLang's workers are divided in other ways than tensor parallelism."""
        self.is_paused = False
        """Whether this process has paused the engine."""

    def __repr__(self) -> str:
        return f"Replica({self.name!r})"

    @property
    def kind(self) -> EngineKind:
        if self.endpoint.described.owned_by == "holdfast":
            return EngineKind.EMBEDDED
        return EngineKind(self.endpoint.dialect.administers or EngineKind.OTHER)

    @property
    def title(self) -> str:
        return f"{self.kind} {self.release}".strip()

    async def describe(self) -> None:
        """Asks the engine about itself. A property that the engine does not report stays
        unknown."""
        if self.kind is EngineKind.VLLM:
            self.release = str((await self._ask("/version")).get("version", ""))
            text = str((await self._ask("/server_info")).get("vllm_config", ""))
            self.dtype = _field(text, r"\bdtype=torch\.(\w+)")
            self.device = _field(text, r"\bdevice_config=(\w+)")
            self.workers = await self._find_workers()
            self.transfer = await self._find_transfer()
            size = (await self._ask("/get_world_size")).get("world_size")
        elif self.kind is EngineKind.SGLANG:
            found = await self._ask("/get_server_info")
            self.release = str(found.get("version", ""))
            self.dtype = str(found.get("dtype", "") or "")
            self.device = str(found.get("device", "") or "")
            size = found.get("tp_size")
            self.is_divided = any(found.get(name, 1) != 1 for name in ("pp_size", "dp_size"))
        else:
            return
        self.world_size = size if isinstance(size, int) else 1

    async def _find_transfer(self) -> "TransferBackend":
        """Returns the transfer backend of the engine. The workers report it. If they do not, a
        request without values gets an error that names the backend's class."""
        if self.workers and self.workers[0].transfer in tuple(TransferBackend):
            return TransferBackend(self.workers[0].transfer)
        try:
            await self.post("/init_weight_transfer_engine", {"init_info": {}})
        except WeightsNotTaken as error:
            return next(
                (backend for words, backend in _BACKENDS.items() if words in str(error)),
                TransferBackend.OTHER
                if "Invalid init_info" in str(error)
                else TransferBackend.NO_ROUTE,
            )
        return TransferBackend.OTHER  # vLLM's own ipc backend needs no values.

    async def _find_workers(self) -> "tuple[Device, ...]":
        try:
            found = await self.post("/collective_rpc", {"method": "holdfast_describe"})
            return msgspec.convert(found.get("results"), tuple[Device, ...])
        except (WeightsNotTaken, msgspec.ValidationError):
            return ()

    async def _ask(self, path: str) -> dict[str, object]:
        try:
            found = msgspec.json.decode(
                await self.endpoint.send("GET", path, seconds=SWITCH_SECONDS)
            )
        except UNREACHABLE:
            return {}
        return found if isinstance(found, dict) else {}

    async def has_route(self, path: str) -> bool:
        """Returns whether the engine has an endpoint at this path. Sends an empty request, whose
        error shows whether the endpoint exists."""
        try:
            await self.endpoint.send("POST", path, {}, seconds=SWITCH_SECONDS)
        except Denied as error:
            return error.status not in NO_ROUTE
        except HoldfastError:
            return True
        return True

    async def post(
        self, path: str, body: object = None, *, seconds: float = SWITCH_SECONDS
    ) -> Mapping[str, object]:
        """Sends a request, and returns the engine's answer. Raises `WeightsNotTaken`, with the
        engine's own words, if the request failed."""
        try:
            raw = await self.endpoint.send("POST", path, body, seconds=seconds)
        except TimeoutError as error:
            raise WeightsNotTaken(f"{self.name} did not end {path} in {seconds:g} s") from error
        except UNREACHABLE as error:
            raise WeightsNotTaken(f"{self.name}{path}: {describe_error(error)}") from error
        found = _decode(raw)
        # SGLang answers 200 to some requests that failed.
        if found.get("success", True) is not True:
            message = found.get("message") or found.get("error") or raw.decode("utf-8", "replace")
            raise WeightsNotTaken(f"{self.name}{path}: {message!s:.300}")
        return found

    async def post_if_known(self, path: str, body: object) -> bool:
        """Sends a request. Returns False if the engine has no endpoint at this path."""
        try:
            await self.post(path, body)
        except WeightsNotTaken as error:
            if isinstance(error.__cause__, Denied) and error.__cause__.status in NO_ROUTE:
                return False
            raise
        return True

    async def loaded(self) -> str:
        """Returns the fingerprint of the weights that the workers loaded last; "" if they have
        loaded none since the engine started."""
        body = await self.post("/collective_rpc", {"method": "holdfast_loaded"})
        results = body.get("results")
        return " and ".join(sorted(set(map(str, results)))) if isinstance(results, list) else ""

    # --- while weights change

    async def pause(self) -> None:
        """Stops sampling until `resume`. The engine keeps requests in flight. If an engine aborts
        requests instead, their clients send them again with the tokens that were sampled."""
        self.is_paused = True
        if self.kind is EngineKind.VLLM:
            await self.post("/pause?mode=keep")
        elif self.kind is EngineKind.SGLANG:
            # Retracted requests are computed again with the new weights. With `in_place`, their old
            # cache would stay, and the rest of the cache could not be cleared.
            await self.post("/pause_generation", {"mode": "retract"})

    async def resume(self) -> None:
        if self.kind is EngineKind.VLLM:
            await self.post("/resume")
        elif self.kind is EngineKind.SGLANG:
            await self.post("/continue_generation", {})
        self.is_paused = False

    async def set_aside(self, version: str = UNFINISHED) -> None:
        """Renames the engine's weights to `version`, if the engine knows names. By default, this is
        a name that no version has, so that half-loaded weights are not taken for the previous
        version."""
        # The embedded engine updates completely or not at all.
        if self.kind is not EngineKind.EMBEDDED:
            await self.post_if_known("/update_weight_version", self._named(version))

    async def reset_cache(self) -> None:
        """Clears every cache entry that old weights computed, even for requests in flight."""
        if self.kind is EngineKind.VLLM:
            await self.post("/reset_prefix_cache?reset_running_requests=true")
        elif self.kind is EngineKind.SGLANG:
            await self.post("/flush_cache", {})

    async def name_version(self, version: str) -> None:
        """Tells the engine the name of the version, if the update did not include the name."""
        await self.post("/update_weight_version", self._named(version))

    def _named(self, version: str) -> dict[str, object]:
        body: dict[str, object] = {"new_version": version}
        if self.kind is EngineKind.SGLANG:
            body["abort_all_requests"] = False
        return body


async def resume_paused(
    urls: Sequence[str], *, api_key: str | None, report: Callable[[str], None]
) -> None:
    """Resumes engines that an earlier trainer left paused. Call it only while holding the engines
    (`engine_lock`). Skips engines that have no such endpoint, and engines that do not answer.
    Raises `EndpointDown` if none answers."""
    policy = EnginePolicy(urls, "", api_key=api_key)
    down = []
    try:
        for endpoint in policy.endpoints:
            try:
                await _resume_paused(endpoint, report)
            except EndpointDown as error:
                down.append(error)
    finally:
        await policy.aclose()
    if len(down) == len(policy.endpoints):
        raise down[0]


async def _resume_paused(endpoint: Endpoint, report: Callable[[str], None]) -> None:
    if await endpoint.is_paused():
        await endpoint.send("POST", "/resume")
        report(f"weights: {endpoint.name} was left paused, and is resumed")
    elif await endpoint.ask("/get_server_info") is not None:  # SGLang does not report this.
        with suppress(*UNREACHABLE):
            await endpoint.send("POST", "/continue_generation", {})


def _decode(raw: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _field(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""
