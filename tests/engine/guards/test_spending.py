"""A run stops at its limits: not before what is spent reaches them, and as soon as it does."""

import pytest

from holdfast.engine.guards.spending import Spending
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from support.records import generated

# A reply of `generated` has two tokens of prompt and three of its own.
PRICES = {"model": {"prompt": 500_000, "completion": 1_000_000}}
COST_OF_A_REPLY = 4.0


@pytest.mark.parametrize("limits", [{"max_cost": 2 * COST_OF_A_REPLY}, {"max_tokens_total": 10}])
def test_a_limit_is_reached_by_exactly_as_much(limits: dict[str, float]) -> None:
    stop = Stop()
    spending = Spending(Settings(prices=PRICES, **limits), stop, is_shared=False)
    spending.take(generated("1"))
    assert (spending.reached(), stop.spent) == ("", False)
    spending.take(generated("2"))
    assert "is reached" in spending.reached()
    assert stop.spent
