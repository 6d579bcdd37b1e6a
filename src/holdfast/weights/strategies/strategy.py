"""What every way of sending weights has.

A strategy is asked what it can do for a replica, sends a version to some of them at once, and
acknowledges for each. It neither pauses engines nor checks what they have: `sync` does, for all.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from holdfast.records.errors import HoldfastError
from holdfast.weights.replica import EngineKind, Replica
from holdfast.weights.version import WeightFolder


class Offer(Struct, frozen=True):
    """Whether an engine can be sent weights this way."""

    works: bool
    detail: str
    """How; or why not, and what would let it."""


class Acknowledgement(Struct, frozen=True):
    """What became of one replica's update."""

    replica: Replica
    error: str = ""
    """"": it has the version. Else the reason, in the engine's own words where they are known."""
    is_intact: bool = False
    """With an error: whether its weights from before are whole."""


class WeightStrategy(ABC):
    """One way. Used by one `WeightSync`, in one event loop."""

    name: str
    """As `--weight-sync` takes it."""
    stands_still = True
    """Whether an engine must not sample meanwhile."""
    kinds: frozenset[EngineKind] = frozenset(EngineKind)
    """The engines that it may be for; others are not asked."""

    @abstractmethod
    async def offers(self, replica: Replica) -> Offer: ...

    def describe(self, offer: Offer) -> str:
        """For people, once it was started."""
        return f"{self.name} ({offer.detail})"

    def mends(self, replica: Replica) -> bool:
        """Whether weights that are half there become whole by sending them again. If not, the
        engine has to be started anew."""
        return True

    async def start(self, replicas: Sequence[Replica]) -> None:
        """Before the first update, for those that get their weights this way. Raises `UsageError`
        if it cannot work."""
        return

    async def prepare(self, version: WeightFolder) -> None:
        """Whatever can be done before any engine has to stand still."""
        return

    async def send(
        self, version: WeightFolder, replicas: Sequence[Replica]
    ) -> list[Acknowledgement]:
        """Sends to all of them at once; an error of one touches no other."""
        return list(await asyncio.gather(*(self._one(version, replica) for replica in replicas)))

    async def _one(self, version: WeightFolder, replica: Replica) -> Acknowledgement:
        try:
            await self.send_one(version, replica)
        except HoldfastError as error:
            return Acknowledgement(replica, str(error))
        return Acknowledgement(replica)

    async def send_one(self, version: WeightFolder, replica: Replica) -> None:
        """For strategies that send to each by itself. Raises `WeightsNotTaken`."""
        raise NotImplementedError

    async def has(self, version: WeightFolder, replica: Replica) -> bool:
        """Whether it says that it has the version already."""
        return await replica.endpoint.version() == version.name

    def model_of(self, version: WeightFolder, replica: Replica) -> str:
        """The name by which a request asks for the version."""
        return replica.endpoint.model

    def switch(self, version: WeightFolder, replica: Replica) -> None:
        """From now on, requests ask for the version; it was checked."""
        return

    async def tidy(self, replica: Replica) -> None:
        """Removes from an engine what no request can ask for any more."""
        return

    def in_use(self) -> set[str]:
        """Names of versions whose files an engine may still read."""
        return set()

    async def aclose(self) -> None:
        return
