"""The interface of all ways of sending weights.

A strategy says whether it can serve a replica, sends a version to several replicas at once, and
returns an acknowledgement for each replica. For all strategies, `sync` pauses the engines and
checks their weights.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import Struct

from holdfast.records.errors import HoldfastError, UsageError
from holdfast.weights.replica import EngineKind, Replica
from holdfast.weights.version import WeightFolder


class Offer(Struct, frozen=True):
    """An answer to the question whether an engine can get weights in one way."""

    works: bool
    detail: str
    """How the engine gets its weights. If it cannot get them in this way, the reason, and what
    would change that."""


class Acknowledgement(Struct, frozen=True):
    """The result of one replica's update."""

    replica: Replica
    error: str = ""
    """Why the replica did not take the version, in the engine's own words if known; "" if it took
    the version."""
    is_intact: bool = False
    """In case of an error, whether the replica still has its previous weights completely."""


class WeightStrategy(ABC):
    """One way of sending weights. An object is used by one `WeightSync` in one event loop."""

    name: str
    """The name of this strategy for `--weight-sync`."""
    stands_still = True
    """Whether an engine must be paused during an update."""
    kinds: frozenset[EngineKind] = frozenset(EngineKind)
    """The kinds of engine that the strategy can serve. Engines of another kind are not asked."""

    @abstractmethod
    async def offers(self, replica: Replica) -> Offer: ...

    def describe(self, offer: Offer) -> str:
        """Describes this way of sending weights in words. It is called after `start`."""
        return f"{self.name} ({offer.detail})"

    def mends(self, replica: Replica) -> bool:
        """Returns whether sending a version again repairs a replica with half-loaded weights. If
        not, the engine must be restarted."""
        return True

    def fingerprints(self, replica: Replica) -> bool:
        """Returns whether the replica computes a fingerprint of weights that this strategy
        sends."""
        return bool(replica.workers) and self.stands_still

    async def start(self, replicas: Sequence[Replica]) -> None:
        """Prepares for the replicas that get their weights from this strategy. It is called before
        the first update. Raises `UsageError` if the strategy cannot work."""
        return

    async def prepare(self, version: WeightFolder) -> None:
        """Does the work for a version that can be done while engines still sample."""
        return

    async def send(
        self, version: WeightFolder, replicas: Sequence[Replica]
    ) -> list[Acknowledgement]:
        """Sends a version to all replicas at once. An error of one replica does not affect the
        other replicas."""
        return list(await asyncio.gather(*(self._one(version, replica) for replica in replicas)))

    async def _one(self, version: WeightFolder, replica: Replica) -> Acknowledgement:
        try:
            await self.send_one(version, replica)
        except HoldfastError as error:
            return Acknowledgement(replica, str(error))
        return Acknowledgement(replica)

    async def send_one(self, version: WeightFolder, replica: Replica) -> None:
        """Sends a version to one replica. Only strategies that treat each replica separately define
        it. Raises `WeightsNotTaken`."""
        raise NotImplementedError

    async def has(self, version: WeightFolder, replica: Replica) -> bool:
        """Returns whether the replica reports that it already has the version."""
        return await replica.endpoint.version() == version.name

    def model_of(self, version: WeightFolder, replica: Replica) -> str:
        """Returns the model name with which a request asks the replica for this version."""
        return replica.endpoint.model

    def switch(self, version: WeightFolder, replica: Replica) -> None:
        """Makes new requests ask for the version, which has already been checked."""
        return

    async def tidy(self, replica: Replica) -> None:
        """Removes data from an engine that no request can use any more."""
        return

    def in_use(self) -> set[str]:
        """Returns the names of versions whose files an engine may still read."""
        return set()

    async def aclose(self) -> None:
        return


AUTO = "auto"


class Choice(Struct, frozen=True):
    """The strategy chosen for one replica, and the names of other strategies that would work."""

    replica: Replica
    strategy: WeightStrategy
    offer: Offer
    others: tuple[str, ...]


async def choose(
    replica: Replica, strategies: Sequence[WeightStrategy], *, wanted: str = AUTO
) -> Choice:
    """Returns the first strategy that works for the replica, or the strategy named `wanted`. Raises
    `UsageError` if none works, and says what would make one work."""
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
    """Raises `UsageError` if replicas compute in different data types. Their logprobs would differ
    from each other and from the trainer's."""
    types = {replica.dtype: replica.name for replica in replicas if replica.dtype}
    if len(types) > 1:
        (first, a), (second, b) = sorted(types.items())[:2]
        raise UsageError(
            f"the replicas differ: {a} serves {first}, {b} {second}; start them alike (--dtype)"
        )


def describe(choices: Sequence[Choice]) -> list[str]:
    """Returns one line for each kind of engine and strategy."""
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
