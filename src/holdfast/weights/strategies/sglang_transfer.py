"""Broadcasts weights into SGLang's workers, message by message, with SGLang's distributed update.

SGLang loads tensors while they arrive. After a failure, its weights are incomplete and must be
discarded. A replica that failed therefore gets no requests until all weights were sent again.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.weights.carrier import Carrier, Device, Framing
from holdfast.weights.replica import UPDATE_SECONDS, EngineKind, Replica
from holdfast.weights.strategies.strategy import Offer
from holdfast.weights.strategies.transfer import GRACE_SECONDS, TransferStrategy
from holdfast.weights.version import WeightFolder, WeightsNotTaken

if TYPE_CHECKING:
    from holdfast.weights.collective import TensorMeta

_INIT = "/init_weights_update_group"
_BEGIN, _END = "/begin_weight_update", "/end_weight_update"


class SglangTransfer(TransferStrategy):
    """A broadcast to SGLang, by NCCL between GPUs, or by gloo if both sides are on CPUs. Each group
    has a new name, because SGLang cannot be asked which groups exist."""

    kinds = frozenset({EngineKind.SGLANG})
    framing = Framing.TENSORS
    members = "sglang"

    def __init__(self, carrier: Carrier, **options: object):
        super().__init__(carrier, **options)  # type: ignore[arg-type]
        self._group = ""
        self._in_session: set[Replica] = set()
        """Replicas that were told that an update begins. Older versions of SGLang have no such
        call."""

    async def offers(self, replica: Replica) -> Offer:
        if not await replica.has_route(_INIT):
            return Offer(False, f"{replica.name} has no {_INIT}")
        if replica.is_divided:
            return Offer(
                False,
                f"{replica.name} takes no broadcast with --pp-size or --dp-size above 1",
            )
        if why := self._why_not(Device(replica.device)):
            return Offer(False, f"{replica.name}: {why}")
        return Offer(True, "")

    def _why_not(self, engine: Device) -> str:
        if self.carrier is Carrier.GLOO and engine.kind != "cpu":
            return "it is on no CPU: its tensors do not go over gloo"
        return self.trainer.why_not(self.carrier, engine)

    async def _open_options(self, replicas: Sequence[Replica]) -> dict[str, object]:
        for replica in replicas:
            await self._leave_group(replica)
        self._group = f"holdfast-{uuid4().hex[:12]}"
        return {**await super()._open_options(replicas), "name": self._group}

    async def _leave_group(self, replica: Replica) -> None:
        """Makes the replica leave its last group. The replica may have lost the group in a
        restart."""
        if self._group:
            try:
                await replica.post("/destroy_weights_update_group", {"group_name": self._group})
            except WeightsNotTaken:
                return

    async def _join(self, replica: Replica, at: dict[str, object], offset: int) -> None:
        body = {
            **at,
            "rank_offset": offset,
            "group_name": self._group,
            "backend": self.carrier,
        }
        await replica.post(_INIT, body, seconds=self._join_seconds + GRACE_SECONDS)

    async def _begin(self, replica: Replica) -> None:
        try:
            is_known = await replica.post_if_known(_BEGIN, {})
        except WeightsNotTaken as error:
            if "already open" not in str(error):
                raise
            # Ends an earlier trainer's update. All weights are sent again.
            await replica.post(_END, {}, seconds=UPDATE_SECONDS)
            is_known = await replica.post_if_known(_BEGIN, {})
        if is_known:
            self._in_session.add(replica)

    async def _receive(self, replica: Replica, metas: "Sequence[TensorMeta]") -> None:
        for part in _parts(metas):
            body = {
                "names": [meta.name for meta in part],
                "dtypes": [meta.dtype for meta in part],
                "shapes": [list(meta.shape) for meta in part],
                "group_name": self._group,
                "flush_cache": False,  # Flushed once, after the last weights.
            }
            path = "/update_weights_from_distributed"
            await replica.post(path, body, seconds=UPDATE_SECONDS)

    async def _finish(self, replica: Replica, version: WeightFolder) -> None:
        if replica in self._in_session:
            self._in_session.discard(replica)
            await replica.post(_END, {}, seconds=UPDATE_SECONDS)
        await replica.name_version(version.name)


def _parts(metas: "Sequence[TensorMeta]") -> "Iterator[list[TensorMeta]]":
    """Divides the tensors into requests, because SGLang allocates room for all tensors of a request
    at once."""
    from holdfast.weights.collective import cut

    return cut(metas)
