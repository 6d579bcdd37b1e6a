"""A table of the user's turns tokens into money, or says in one line what is wrong with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.export.prices import (
    Price,
    Prices,
    as_prices,
    chosen_prices,
    money,
    read_prices,
)
from holdfast.engine.settings import Settings
from holdfast.records.errors import UsageError
from holdfast.records.usage import Usage

TABLE = """
currency = "EUR"

[models."gpt-4o-mini"]
prompt = 0.15
completion = 0.60
cached = 0.075

[models.local]
prompt = 1
completion = 2
"""


def test_a_million_tokens_cost_what_the_table_says(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    prices = read_prices(path)
    cost = prices.cost_of({"gpt-4o-mini": Usage(1_000_000, 1_000_000, 400_000, 5)})
    assert cost.amount == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.60)
    assert str(prices.cost_of({"local": Usage(1_000_000, 500_000, 1_000_000)})) == "2.00 EUR"


def test_json_is_as_good(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"models": {"m": {"prompt": 1, "completion": 2}}}')
    assert read_prices(path) == Prices({"m": Price(1.0, 2.0)})


def test_a_model_without_a_price_is_named_and_not_counted() -> None:
    prices = as_prices({"m": {"prompt": 1, "completion": 1}})
    cost = prices.cost_of({"m": Usage(1_000_000), "other": Usage(5)})
    assert (cost.amount, cost.unpriced) == (1.0, ("other",))
    assert str(cost) == "1.00 USD, without other: no price"
    anything = as_prices({"*": {"prompt": 1, "completion": 1}})
    assert not anything.cost_of({"other": Usage(5)}).unpriced


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "no TOML"),
        ("", "has no models"),
        ("[models.m]\nprompt = 1", "missing required field `completion`"),
        ("[models.m]\nprompt = 1\ncompletion = -2", "completion must be 0 or more"),
        ("[models.m]\nprompt = 1\ncompletion = inf", "completion must be 0 or more"),
        ("[models.m]\nprompt = 1\ncompletion = 1\noutput = 3", "unknown field `output`"),
        ("[m]\nprompt = 1\ncompletion = 1", "unknown field `m`"),
        ('[models.m]\nprompt = "1"\ncompletion = 1', "Expected `float`"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_prices(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_not_there_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_PRICES", str(tmp_path / "nowhere.toml"))
    with pytest.raises(UsageError, match=r"nowhere\.toml \(of HOLDFAST_PRICES\) cannot be read"):
        chosen_prices(None)
    monkeypatch.delenv("HOLDFAST_PRICES")
    assert chosen_prices(None) is None


def test_a_limit_on_cost_needs_prices() -> None:
    with pytest.raises(UsageError, match="max_cost needs the prices of the model"):
        Settings(max_cost=1.0)
    settings = Settings(max_cost=1.0, prices={"m": {"prompt": 1, "completion": 1}})
    assert settings.price_table == Prices({"m": Price(1.0, 1.0)})
    with pytest.raises(UsageError, match="max_tokens_total must be 1 or more"):
        Settings(max_tokens_total=0)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "0.00"), (0.00001, "0.00001"), (0.5, "0.50"), (12.345, "12.35"), (1234.5, "1,234.50")],
)
def test_money_is_readable(amount: float, text: str) -> None:
    assert money(amount) == text


def test_a_price_that_is_wrong_is_named_by_its_model() -> None:
    with pytest.raises(UsageError, match="the price of 'gpt-x': Expected `float`, got `str`"):
        as_prices({"gpt-x": {"prompt": "a", "completion": 1}})


def test_a_table_that_is_not_there_stops_only_what_needs_one() -> None:
    environment = {**os.environ, "HOLDFAST_PRICES": "nowhere.toml"}
    plan = [sys.executable, "-c", "import holdfast.engine.running.run_plan"]
    subprocess.run(plan, env=environment, check=True)
