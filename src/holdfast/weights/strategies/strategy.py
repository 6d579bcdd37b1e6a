"""What every way of sending weights has.

A strategy is asked what it can do for a replica, sends a version to some of them at once, and
acknowledges for each. It neither pauses engines nor checks what they have: `sync` does, for all.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from holdfast.records.errors import HoldfastError, UsageError
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
        """Called before the first update, with the replicas that get their weights this way. Raises
        `UsageError` if it cannot work."""
        return

    async def prepare(self, version: WeightFolder) -> None:
        """Does whatever can be done while engines still run."""
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
        """For strategies that send to each replica by itself. Raises `WeightsNotTaken`."""
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


AUTO = "auto"


class Choice(Struct, frozen=True):
    """The way for one replica, and what else it offers."""

    replica: Replica
    strategy: WeightStrategy
    offer: Offer
    others: tuple[str, ...]


async def choose(
    replica: Replica, strategies: Sequence[WeightStrategy], *, wanted: str = AUTO
) -> Choice:
    """The first strategy that the replica offers, or the requested one. Raises `UsageError` with
    what would make it work."""
    await replica.describe()
    possible = [strategy for strategy in strategies if replica.kind in strategy.kinds]
    offers = await asyncio.gather(*(strategy.offers(replica) for strategy in possible))
    pairs = list(zip(possible, offers, strict=True))
    working = [(strategy, offer) for strategy, offer in pairs if offer.works]
    chosen = [pair for pair in working if wanted in (AUTO, pair[0].name)]
    if not chosen:
        raise UsageError(_refusal(replica, pairs, wanted))
    strategy, offer = chosen[0]
    others = tuple(other.name for other, _ in working if other.name != strategy.name)
    return Choice(replica, strategy, offer, others)


def _refusal(replica: Replica, pairs: Sequence[tuple[WeightStrategy, Offer]], wanted: str) -> str:
    named = [(s.name, offer) for s, offer in pairs if wanted in (AUTO, s.name)]
    if wanted != AUTO and not named:
        return f"--weight-sync {wanted} is not possible here: {replica.name} is {replica.title}"
    if wanted != AUTO:
        return f"--weight-sync {wanted}: {'; '.join(offer.detail for _, offer in named)}"
    reasons = "; ".join(f"{name}: {offer.detail}" for name, offer in named)
    return f"{replica.title} at {replica.name} can take no weights ({reasons})"


def check_alike(replicas: Sequence[Replica]) -> None:
    """Raises `UsageError` for replicas that compute in different types: their logprobs would
    differ, and the trainer's from some of them."""
    types = {replica.dtype: replica.name for replica in replicas if replica.dtype}
    if len(types) > 1:
        (first, a), (second, b) = sorted(types.items())[:2]
        raise UsageError(
            f"the replicas differ: {a} serves {first}, {b} {second}; start them alike (--dtype)"
        )


def describe(choices: Sequence[Choice]) -> list[str]:
    """A line for each kind of engine and way."""
    groups: dict[tuple[str, WeightStrategy], list[Choice]] = {}
    for choice in choices:
        groups.setdefault((choice.replica.title, choice.strategy), []).append(choice)
    return [_line(title, group) for (title, _), group in groups.items()]


def _line(title: str, group: Sequence[Choice]) -> str:
    where = ", ".join(choice.replica.name for choice in group)
    others = sorted(set.intersection(*(set(choice.others) for choice in group)))
    more = f"; {', '.join(others)} would work, too: --weight-sync {others[0]}" if others else ""
    way = group[0].strategy.describe(group[0].offer)
    return f"weights: {title} at {where}: {way}{more}"
