"""Which way each engine gets its weights by: found out by asking it, and said why."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.weights.replica import Replica
from holdfast.weights.strategies.strategy import Offer, WeightStrategy

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
    """The first of the strategies that the replica offers, or the one that is wanted. Raises
    `UsageError` with what would let it work."""
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
