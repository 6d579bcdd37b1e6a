from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.client.circuit_breaker import RetryBudget
from holdfast.policy.retry import RetryPolicy, retry_after


@given(failures=st.integers(1, 10**6))
def test_a_delay_stays_under_its_cap_however_often_a_call_failed(failures: int) -> None:
    assert 0 <= RetryPolicy(base=0.5, cap=3.0).delay(failures) <= 3.0


@given(failures=st.integers(1, 5), wanted_delay=st.floats(0, 1e6))
def test_a_delay_is_never_shorter_than_what_the_server_asked_for(
    failures: int, wanted_delay: float
) -> None:
    assert RetryPolicy().delay(failures, retry_after=wanted_delay) >= wanted_delay


def test_calls_that_were_told_the_same_time_do_not_come_back_in_one_wave() -> None:
    policy = RetryPolicy()
    assert len({policy.delay(3, retry_after=2.0) for _ in range(20)}) > 1


def test_the_budget_ends_and_successes_earn_it_back() -> None:
    budget = RetryBudget(floor=2, earned=0.5)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()
    budget.refill()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


def test_successes_never_earn_more_than_the_floor() -> None:
    budget = RetryBudget(floor=1)
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after": "later"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-1"}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=0.0) == seconds


@pytest.mark.parametrize("zone", ["GMT", "-0000"])
def test_retry_after_may_be_a_date(zone: str) -> None:
    date = datetime(2026, 11, 15, 12, tzinfo=UTC)
    header = format_datetime(date, usegmt=True).replace("GMT", zone)
    assert retry_after({"retry-after": header}, now=date.timestamp() - 5) == 5.0
    assert retry_after({"retry-after": header}, now=date.timestamp() + 5) == 0.0
