"""Sends weights by vLLM's weight transfer, with the backend of `vllm_worker` or with vLLM's own
backend.

The backend of `vllm_worker` receives all weights before it loads the first. If the sender dies
half-way, the engine's weights are therefore unchanged. vLLM's own backend loads weights while they
arrive and waits without a deadline: if a group breaks, its engines must be restarted.
"""

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast import crashpoint
from holdfast.policy.dialects.dialect import UNFINISHED
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.weights.carrier import Carrier, Device, Framing, this_device
from holdfast.weights.replica import (
    DEV_MODE,
    SWITCH_SECONDS,
    UPDATE_SECONDS,
    EngineKind,
    Replica,
    TransferBackend,
)
from holdfast.weights.strategies.disk import WORKER
from holdfast.weights.strategies.strategy import Acknowledgement, Offer, WeightStrategy
from holdfast.weights.strategies.transfer import GRACE_SECONDS, SenderProcess, TransferStrategy
from holdfast.weights.version import WeightFolder, WeightsNotTaken

if TYPE_CHECKING:
    from holdfast.weights.collective import TensorMeta

REMEDY = (
    f"start it with --worker-extension-cls {WORKER} "
    '--weight-transfer-config \'{"backend": "holdfast"}\''
)
PACKED_BYTES = 64 << 20
_NOTHING = {"names": [""], "dtype_names": [], "shapes": []}
"""An update that every backend refuses. It is sent to end an update that was begun."""


def why_no_workers(replica: Replica, carrier: Carrier, trainer: Device) -> str:
    """Returns why `carrier` cannot send to the backend of `vllm_worker`; "" if it can."""
    if replica.transfer is TransferBackend.NO_ROUTE:
        return f"{replica.name} has no weight transfer: {DEV_MODE}"
    if replica.transfer is not TransferBackend.HOLDFAST or not replica.workers:
        what = "no" if replica.transfer is TransferBackend.NONE else "another"
        return f"{replica.name} has {what} backend of weight transfer: {REMEDY}"
    reasons = (trainer.why_not(carrier, worker) for worker in replica.workers)
    return next((f"{replica.name}: {why}" for why in reasons if why), "")


async def begin_update(replica: Replica) -> None:
    try:
        await replica.post("/start_weight_update")
    except WeightsNotTaken as error:
        if "already active" not in str(error):
            raise
        if replica.transfer is not TransferBackend.HOLDFAST:
            raise _half_loaded(replica) from error
        # An earlier trainer began an update and died before the engine loaded any of it.
        try:
            await replica.post("/update_weights", {"update_info": _NOTHING})
        except WeightsNotTaken:
            await replica.post("/start_weight_update")
        else:
            raise


def _half_loaded(replica: Replica) -> WeightsNotTaken:
    return WeightsNotTaken(
        f"{replica.name} was left in the middle of an update, with weights that are half loaded: "
        "start it anew"
    )


async def finish_update(replica: Replica, version: WeightFolder) -> None:
    body = {"weight_version": version.name}
    await replica.post("/finish_weight_update", body, seconds=UPDATE_SECONDS)
    if await replica.endpoint.version() != version.name:  # vLLM 0.27 and older drop the name.
        await replica.name_version(version.name)


class VllmTransfer(TransferStrategy):
    """A broadcast to the backend of `vllm_worker`, over TCP or from GPU to GPU."""

    kinds = frozenset({EngineKind.VLLM})

    async def offers(self, replica: Replica) -> Offer:
        if why := why_no_workers(replica, self.carrier, self.trainer):
            return Offer(False, why)
        if self.carrier is Carrier.GLOO:
            why = self.trainer.why_not(Carrier.NCCL, replica.workers[0])
        return Offer(True, f"; {why}" if why else "")

    def is_staged(self, replica: Replica) -> bool:
        return True

    async def _join(self, replica: Replica, at: dict[str, object], offset: int) -> None:
        body = {"init_info": {**at, "rank_offset": offset, **self._wire()}}
        seconds = self._join_seconds + GRACE_SECONDS
        await replica.post("/init_weight_transfer_engine", body, seconds=seconds)

    def _wire(self) -> dict[str, object]:
        """Returns the transfer options that sender and receivers must have in common."""
        return {"carrier": self.carrier}

    async def _begin(self, replica: Replica) -> None:
        await begin_update(replica)

    async def _receive(self, replica: Replica, metas: "Sequence[TensorMeta]") -> None:
        from holdfast.weights.sender import describe

        body = {"update_info": describe(metas)}
        await replica.post("/update_weights", body, seconds=UPDATE_SECONDS)

    async def _finish(self, replica: Replica, version: WeightFolder) -> None:
        await finish_update(replica, version)


class VllmOwnTransfer(VllmTransfer):
    """A broadcast to vLLM's own `nccl` backend. The engine needs nothing from Holdfast, but vLLM
    must be installed in the trainer's environment."""

    framing = Framing.OVERFLOWING
    members = "vllm"

    def __init__(self, **options: object):
        super().__init__(Carrier.NCCL, **options)  # type: ignore[arg-type]

    async def offers(self, replica: Replica) -> Offer:
        if replica.transfer is not TransferBackend.NCCL:
            remedy = '--weight-transfer-config \'{"backend": "nccl"}\''
            return Offer(False, f"{replica.name} was not started with {remedy}")
        if why := self.trainer.why_not(Carrier.NCCL, Device(replica.device)):
            return Offer(False, f"{replica.name}: {why}")
        if find_spec("vllm") is None:
            return Offer(
                False,
                f"{replica.name} has vLLM's own nccl backend: install vllm beside the trainer, or "
                f"{REMEDY}",
            )
        return Offer(True, ", by vLLM's own backend")

    def is_staged(self, replica: Replica) -> bool:
        return False

    def mends(self, replica: Replica) -> bool:
        return False

    def fingerprints(self, replica: Replica) -> bool:
        return False

    async def _begin(self, replica: Replica) -> None:
        if await replica.endpoint.version() == UNFINISHED:
            raise _half_loaded(replica)
        await replica.name_version(UNFINISHED)
        await begin_update(replica)

    def _wire(self) -> dict[str, object]:
        return {
            "packed": True,
            "packed_buffer_size_bytes": PACKED_BYTES,
            "packed_num_buffers": 1,
        }


class VllmSharedMemory(WeightStrategy):
    """Sends weights through memory of the trainer that the engine's workers map: memory of a GPU
    that both use, or of the machine. Each replica is served separately, so there is no group that
    can break. The engine needs the backend of `vllm_worker`."""

    name = Carrier.IPC.value
    kinds = frozenset({EngineKind.VLLM})

    def __init__(self, *, trainer: Device | None = None):
        self.trainer = trainer or this_device()
        self._sender = SenderProcess()
        self._lock = asyncio.Lock()

    async def offers(self, replica: Replica) -> Offer:
        if why := why_no_workers(replica, Carrier.IPC, self.trainer):
            return Offer(False, why)
        shared = "a GPU" if self.trainer.kind == "cuda" else "the memory of this machine"
        return Offer(True, f"it shares {shared} with the trainer")

    def describe(self, offer: Offer) -> str:
        return f"{self.name} transfer ({offer.detail})"

    async def start(self, replicas: Sequence[Replica]) -> None:
        """Shares a few test bytes with each replica, because containers on one machine may have
        separate memory."""
        for replica in replicas:
            try:
                async with self._lock:
                    trial = await self._sender.ask(
                        "try", within=SWITCH_SECONDS, device=self.trainer.name
                    )
                    info = {"carrier": self.name, "handle": trial["handle"]}
                    await replica.post("/init_weight_transfer_engine", {"init_info": info})
            except WeightsNotTaken as error:
                raise UsageError(
                    f"--weight-sync {self.name}: {error}; the engine's processes have to see the "
                    "trainer's (one container, one user)"
                ) from error

    async def send(
        self, version: WeightFolder, replicas: Sequence[Replica]
    ) -> list[Acknowledgement]:
        """Sends the version to one replica after the other. Each message must be read before the
        next message replaces it in memory."""
        async with self._lock:
            return [await self._send_to(version, replica) for replica in replicas]

    async def _send_to(self, version: WeightFolder, replica: Replica) -> Acknowledgement:
        is_intact = True
        try:
            await begin_update(replica)
            crashpoint.reach("weights.begun")
            await self._hand_over(version, replica)
            crashpoint.reach("weights.received")
            is_intact = False
            await finish_update(replica, version)
        except HoldfastError as error:
            await self._sender.kill()
            return Acknowledgement(replica, str(error), is_intact=is_intact)
        return Acknowledgement(replica)

    async def _hand_over(self, version: WeightFolder, replica: Replica) -> None:
        part, parts = 0, 1
        while part < parts:
            answer = await self._sender.ask(
                "share",
                within=UPDATE_SECONDS,
                folder=str(version.path.resolve()),
                part=part,
                device=self.trainer.name,
            )
            total = answer.pop("parts")
            assert isinstance(total, int), "it says how many there are"
            await replica.post("/update_weights", {"update_info": answer}, seconds=UPDATE_SECONDS)
            part, parts = part + 1, total

    async def aclose(self) -> None:
        await self._sender.kill()
