"""In process: gives a state dict to an embedded engine that runs in the trainer's own process."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.records.errors import HoldfastError
from holdfast.weights.replica import Replica
from holdfast.weights.strategies.strategy import Offer, WeightStrategy
from holdfast.weights.version import WeightFolder, WeightsNotTaken

if TYPE_CHECKING:
    from holdfast.embedded.scheduler.engine import DecodeEngine


class InProcessStrategy(WeightStrategy):
    """Updates engines in this process. `engines` has each engine by its address."""

    name = "process"

    def __init__(self, engines: "Mapping[str, DecodeEngine]"):
        self._engines = dict(engines)
        self._state: dict[str, Any] = {}

    async def offers(self, replica: Replica) -> Offer:
        if replica.endpoint.url not in self._engines:
            return Offer(False, f"{replica.name} runs in another process")
        return Offer(True, "it runs in this process")

    async def prepare(self, version: WeightFolder) -> None:
        self._state = await asyncio.to_thread(self._read, version)

    def _read(self, version: WeightFolder) -> dict[str, Any]:
        from holdfast.embedded.model.weights import read_converted

        network = next(iter(self._engines.values())).model.network
        return read_converted(network, version.path)

    async def send_one(self, version: WeightFolder, replica: Replica) -> None:
        engine = self._engines[replica.endpoint.url]
        try:
            await asyncio.to_thread(engine.update_weights, self._state, version.name)
        except HoldfastError as error:
            raise WeightsNotTaken(f"{replica.name}: {error}") from error
