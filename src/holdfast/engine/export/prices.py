"""Computes the cost of tokens for each model, from a table of prices that the user provides.

Costs are never recorded. They are computed from recorded tokens and the table, so a corrected table
corrects every figure.
"""

import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.records.encoding.declared import check_fields
from holdfast.records.encoding.text_files import read_text_file
from holdfast.records.errors import UsageError
from holdfast.records.usage import Usage

VARIABLE = "HOLDFAST_PRICES"
"""The environment variable that names the price table if no option does."""
ANY_MODEL = "*"
_MILLION = 1_000_000
_EXAMPLE = '[models."NAME"] with prompt = 0.15 and completion = 0.60, for a million tokens'


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """Prices for a million tokens of each kind."""

    prompt: float
    completion: float
    cached: float | None = None
    """The price of cached prompt tokens. None means the same price as for other prompt tokens."""

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, usage: Usage) -> float:
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        spent = (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * (self.prompt if self.cached is None else self.cached)
            + usage.completion_tokens * self.completion
        )
        return spent / _MILLION


class Cost(Struct, frozen=True):
    """The cost of recorded usage, computed from a price table."""

    amount: float
    currency: str
    unpriced: tuple[str, ...] = ()
    """Models that were used and have no price. Their usage is not in the amount."""

    def __str__(self) -> str:
        missing = f", without {', '.join(self.unpriced)}: no price" if self.unpriced else ""
        return f"{money(self.amount)} {self.currency}{missing}"


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of prices."""

    models: dict[str, Price] = {}
    """Prices by model. `*` stands for every model that is not named."""
    currency: str = "USD"
    worlds: dict[str, float] = {}
    """The price of an hour of a world by its provider, such as docker. `*` stands for every
    provider that is not named."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, price in self.models.items():
            for kind in ("prompt", "completion", "cached"):
                value = getattr(price, kind)
                if value is not None and not (math.isfinite(value) and value >= 0):
                    raise UsageError(f"the price of {name!r}: {kind} must be 0 or more")

        for name, hour in self.worlds.items():
            if not (math.isfinite(hour) and hour >= 0):
                raise UsageError(f"the price of an hour of a {name} world must be 0 or more")

    def of_worlds(self, seconds: Mapping[str, float]) -> float:
        """Returns the cost of worlds. `seconds` has the time for which the worlds of each provider
        existed. A provider without a price costs nothing."""
        hours = (
            (self.worlds.get(name, self.worlds.get(ANY_MODEL, 0.0)), amount / 3600)
            for name, amount in seconds.items()
        )
        return math.fsum(price * hour for price, hour in hours)

    def price_of(self, model: str) -> Price | None:
        return self.models.get(model) or self.models.get(ANY_MODEL)

    def cost_of(self, used: Mapping[str, Usage]) -> Cost:
        """Returns the total cost of all models."""
        amounts, unpriced = [], []
        for model, usage in used.items():
            price = self.price_of(model)
            if price is not None:
                amounts.append(price.of(usage))
            elif usage.total_tokens:
                unpriced.append(model)
        return Cost(math.fsum(amounts), self.currency, tuple(sorted(unpriced)))


def money(amount: float) -> str:
    """Formats an amount of money: in whole cents from 1 up, and with up to six decimals below 1."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.6f}".rstrip("0").ljust(4, "0")


def as_prices(prices: object) -> Prices:
    """Returns the given price table, reads it from a file, or makes it from a dict of prices by
    model. Raises `UsageError`.
    """
    if isinstance(prices, Prices):
        return prices
    if isinstance(prices, str | os.PathLike):
        return read_prices(Path(prices))
    if isinstance(prices, Mapping):
        fields = prices if "models" in prices else {"models": prices}
        return _convert(fields, "prices")
    raise UsageError(f"prices are a file, or a dict by model, not {prices!r:.100}")


def chosen_prices(path: str | None) -> Prices | None:
    """Returns the price table in the file `path`, or `default_prices()` without a path."""
    return default_prices() if path is None else read_prices(Path(path))


def default_prices() -> Prices | None:
    """Returns the price table that the environment variable names, or None."""
    path = os.environ.get(VARIABLE)
    return read_prices(Path(path), source=f"{path} (of {VARIABLE})") if path else None


def read_prices(path: Path, *, source: str = "") -> Prices:
    """Reads prices from a TOML or JSON file. Raises a `UsageError` that names the file."""
    source = source or str(path)
    text = read_text_file(path, f"prices {source}")
    try:
        fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"prices {source}: no {kind}: {error}; it wants {_EXAMPLE}") from error
    return _convert(fields, f"prices {source}")


def _explain(fields: object) -> str:
    """Returns what is wrong with the first invalid price, or "" if all prices are valid."""
    models = fields.get("models") if isinstance(fields, Mapping) else None
    for name, price in models.items() if isinstance(models, Mapping) else ():
        try:
            msgspec.convert(price, Price)
        except msgspec.ValidationError as error:
            return f"the price of {name!r}: {str(error).replace(' - at `$.', ' - at `')}"
    return ""


def _convert(fields: object, source: str) -> Prices:
    try:
        prices = msgspec.convert(fields, Prices)
    except msgspec.ValidationError as error:
        why = _explain(fields) or str(error)
        raise UsageError(f"{source}: {why}; it wants {_EXAMPLE}") from error
    if not prices.models:
        raise UsageError(f"{source} has no models; it wants {_EXAMPLE}")
    return prices
