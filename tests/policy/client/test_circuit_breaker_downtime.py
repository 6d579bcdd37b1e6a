"""Time counts as lost only while no replica at all is up."""

from collections.abc import Awaitable, Callable

import pytest

from holdfast.policy.client.circuit_breaker import (
    COOL_BASE_SECONDS,
    FAILURES_IN_A_ROW,
    CircuitBreaker,
    Downtime,
)
from holdfast.records.errors import EndpointDown
from holdfast.testing import ManualClock


class World:
    """Some replicas, each up or down as it is told."""

    def __init__(self, count: int, *, patience: float = 1_000.0):
        self.clock = ManualClock()
        self.up = [True] * count
        self.breakers = [
            CircuitBreaker(f"e{at}", self._probe(at), clock=self.clock, patience=patience)
            for at in range(count)
        ]
        self.downtime = Downtime(self.breakers, self.clock)

    def _probe(self, at: int) -> Callable[[bool], Awaitable[str | None]]:
        async def probe(_: bool) -> str | None:
            return None if self.up[at] else "refused"

        return probe

    async def fall(self, at: int) -> None:
        self.up[at] = False
        self.breakers[at].trip()
        await self.clock.advance(0)

    async def rise(self, at: int) -> None:
        """Its next probe is at most five seconds away."""
        self.up[at] = True
        while not self.breakers[at].is_passing:
            await self.clock.advance(0.5)

    async def close(self) -> None:
        for breaker in self.breakers:
            await breaker.aclose()


async def test_nothing_is_lost_while_one_is_up() -> None:
    world = World(2)
    await world.fall(0)
    await world.clock.advance(50)
    assert world.downtime.seconds == 0
    await world.rise(0)
    await world.fall(1)
    await world.clock.advance(50)
    assert world.downtime.seconds == 0
    await world.close()


async def test_what_is_lost_begins_with_the_last_to_fall_and_ends_with_the_first_to_rise() -> None:
    world = World(3)
    for at in range(3):
        await world.fall(at)
        await world.clock.advance(10)
    assert world.downtime.seconds == 10
    await world.clock.advance(7)
    assert world.downtime.seconds == 17
    began = world.clock.elapsed()
    await world.rise(1)
    lost = world.downtime.seconds
    assert lost == 17 + world.clock.elapsed() - began
    await world.clock.advance(100)
    assert world.downtime.seconds == lost
    await world.fall(1)
    await world.clock.advance(5)
    assert world.downtime.seconds == lost + 5, "once more"
    await world.close()


async def test_one_that_was_given_up_counts_as_down_for_good() -> None:
    world = World(2, patience=30)
    await world.fall(0)
    await world.clock.advance(100)
    assert world.breakers[0].is_abandoned
    assert not world.breakers[0].is_passing, "no call passes it"
    assert world.downtime.seconds == 0
    await world.fall(1)
    await world.clock.advance(10)
    assert world.downtime.seconds == 10
    await world.rise(1)
    lost = world.downtime.seconds
    await world.clock.advance(50)
    assert world.downtime.seconds == lost
    await world.close()


async def test_nothing_is_lost_any_more_when_all_are_given_up() -> None:
    world = World(2, patience=30)
    await world.fall(0)
    await world.fall(1)
    await world.clock.advance(100)
    assert all(breaker.is_abandoned for breaker in world.breakers)
    lost = world.downtime.seconds
    assert lost >= 30
    await world.clock.advance(100)
    assert world.downtime.seconds == lost
    with pytest.raises(EndpointDown, match="e0 has been down"):
        await world.breakers[0].wait_ready()
    await world.close()


async def test_a_liar_that_cools_down_is_not_down_and_stays_away_longer_each_time() -> None:
    world = World(1)
    breaker = world.breakers[0]
    for round_ in range(3):
        for _ in range(FAILURES_IN_A_ROW):
            assert breaker.is_passing
            breaker.record_bad_answer()
        assert not breaker.is_passing
        await world.clock.advance(COOL_BASE_SECONDS * 2**round_ - 0.1)
        assert not breaker.is_passing
        await world.clock.advance(0.2)
        assert breaker.is_passing
    assert world.downtime.seconds == 0
    await world.close()


async def test_lies_that_are_not_in_a_row_are_forgiven() -> None:
    world = World(1)
    for _ in range(5):
        for _ in range(FAILURES_IN_A_ROW - 1):
            world.breakers[0].record_bad_answer()
        world.breakers[0].record_success()
    assert world.breakers[0].is_passing
    await world.close()
