import asyncio

from holdfast.clock import Clock
from holdfast.testing import ManualClock


async def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = ManualClock(now=100.0)
    sleeper = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    assert (clock.now(), clock.elapsed(), sleeper.done()) == (100.0, 0.0, False)
    sleeper.cancel()


async def test_sleepers_wake_in_the_order_in_which_they_are_due_and_see_their_own_time() -> None:
    clock = ManualClock()
    woke: list[tuple[str, float]] = []

    async def sleep(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woke.append((name, clock.elapsed()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleep("late", 5))
        group.create_task(sleep("early", 1, 2, 9))
        group.create_task(sleep("early too", 1))
        await clock.advance(6)
        assert woke == [("early", 1), ("early too", 1), ("early", 3), ("late", 5)]
        assert (clock.elapsed(), clock.sleepers) == (6, 1)
        await clock.advance(6)
    assert woke[-1] == ("early", 12)


async def test_a_sleeper_that_was_cancelled_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.advance(0)
    assert clock.sleepers == 1
    sleeper.cancel()
    await clock.advance(2)
    assert sleeper.cancelled()
    assert (clock.elapsed(), clock.sleepers) == (2, 0)


def test_a_sleep_of_nothing_lets_others_run_and_returns() -> None:
    asyncio.run(ManualClock().sleep(0))
