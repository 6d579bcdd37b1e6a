"""A rate of the last minute: what came before it says nothing."""

import pytest

from holdfast.engine.progress.counters import RecentRate


def test_it_is_a_rate_from_the_beginning_on() -> None:
    rate = RecentRate(100.0)
    rate.add(50, 105.0)
    assert rate.per_second(110.0) == pytest.approx(5.0)


def test_a_minute_later_it_is_forgotten() -> None:
    rate = RecentRate(0.0)
    for second in range(120):
        rate.add(10 if second < 60 else 30, float(second))
    assert rate.per_second(119.0) == pytest.approx(30.0, rel=0.05)
    assert rate.per_second(300.0) == 0.0, "nothing comes in an outage"


def test_its_memory_is_bounded() -> None:
    rate = RecentRate(0.0)
    for number in range(100_000):
        rate.add(1, number / 1000)
    assert len(rate._steps) <= 121
    assert rate.per_second(100.0) == pytest.approx(1000, rel=0.02)
