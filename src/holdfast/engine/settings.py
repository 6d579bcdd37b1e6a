"""Settings say how a run is worked on. They do not change what the run samples."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from holdfast.engine import option_kinds, options
from holdfast.engine.export.prices import Prices, as_prices, default_prices
from holdfast.records.encoding.declared import NamedFields, check_fields
from holdfast.records.errors import UsageError
from holdfast.rollout.replay.run_context import OnDivergence

RetryRule = Callable[[Exception], bool | None]
"""Decides whether an attempt that raised this error is retried. True retries it within
`max_retry`, whatever the cause. False never retries it. None decides by the cause.
"""


class ScoringPolicy(Struct, frozen=True, metaclass=NamedFields):
    """The retry rules of scoring. A failed score never causes a new rollout."""

    tries: int = options.SCORER_TRIES.default
    timeout: float = options.SCORER_TIMEOUT.default
    concurrency: int = options.SCORER_CONCURRENCY.default

    def __post_init__(self) -> None:
        options.SCORER_TRIES.check(self.tries, "a scorer's tries")
        options.SCORER_CONCURRENCY.check(self.concurrency, "a scorer's concurrency")
        options.SCORER_TIMEOUT.check(self.timeout, "a scorer's timeout")


class Settings(Struct, frozen=True, metaclass=NamedFields):
    """How a run is worked on. Settings do not change what is sampled, so all may change on a
    resume.
    """

    concurrency: int = options.CONCURRENCY.default
    max_retry: int = options.MAX_RETRY.default
    """How often a failed attempt is tried again, with replay."""
    max_failures: int | None = options.MAX_FAILURES.default
    """Stop when this many trajectories have failed for good since the start; None: never."""
    attempt_deadline: float = options.ATTEMPT_DEADLINE.default
    run_deadline: float | None = options.RUN_DEADLINE.default
    patience: float = options.PATIENCE.default
    """How long an engine, the policy's or a judge's, may be down before the run stops."""
    lease_seconds: float = options.LEASE.default
    grace: float = options.GRACE.default
    """The seconds that generations in flight have to finish after a stop is requested."""
    backoff: float = 1.0
    backoff_cap: float = 30.0
    backoff_growth: float = 2.0
    """The factor by which the longest wait grows with each failure. With 1, every wait is
    `backoff` seconds.
    """
    retry_rule: RetryRule | None = None
    on_divergence: OnDivergence = OnDivergence(options.ON_DIVERGENCE.default)
    scoring: ScoringPolicy = ScoringPolicy()
    partial_tokens: int = options.PARTIAL_TOKENS.default
    """How many tokens of an unfinished generation are made durable at a time; 0 turns this off."""
    join: bool = options.JOIN.default
    """Share the run with other live workers instead of refusing to start."""
    idle: float | None = None
    """For a worker that shares the run: it leaves after this many seconds without work. None
    means that it stays until the run is over.
    """
    max_cost: float | None = options.MAX_COST.default
    """Stop when the run has cost this much, in the currency of `prices`; None: never."""
    max_tokens_total: int | None = options.MAX_TOKENS_TOTAL.default
    """Stop when the run has used this many tokens, prompts and replies together; None: never."""
    worlds: int = options.WORLDS.default
    """How many worlds are made at once."""
    prices: Prices | str | Path | Mapping[str, object] | None = None
    """Prices of tokens: a `Prices`, the path of a table, or a dict by model. None means the
    table that HOLDFAST_PRICES names, if any.
    """

    @property
    def price_table(self) -> Prices | None:
        """The prices as a table."""
        assert self.prices is None or isinstance(self.prices, Prices), "they are read at once"
        return self.prices

    def __post_init__(self) -> None:
        check_fields(self)
        for name, option in _OPTIONS.items():
            option.check(getattr(self, name), name)
        option_kinds.SECONDS_OR_NONE.check("backoff", self.backoff)
        option_kinds.SECONDS_OR_NONE.check("backoff_cap", self.backoff_cap)
        option_kinds.GROWTH.check("backoff_growth", self.backoff_growth)
        prices = default_prices() if self.prices is None else as_prices(self.prices)
        structs.force_setattr(self, "prices", prices)
        if self.max_cost is not None and prices is None:
            raise UsageError(
                "max_cost needs the prices of the model: name their table with --price FILE (in "
                "pytest: --holdfast-price FILE; from Python: Settings(prices=…))"
            )


_OPTIONS = {
    "concurrency": options.CONCURRENCY,
    "max_retry": options.MAX_RETRY,
    "max_failures": options.MAX_FAILURES,
    "attempt_deadline": options.ATTEMPT_DEADLINE,
    "run_deadline": options.RUN_DEADLINE,
    "patience": options.PATIENCE,
    "lease_seconds": options.LEASE,
    "grace": options.GRACE,
    "partial_tokens": options.PARTIAL_TOKENS,
    "max_cost": options.MAX_COST,
    "max_tokens_total": options.MAX_TOKENS_TOTAL,
    "worlds": options.WORLDS,
}


def settings_of(values: Mapping[str, Any], *, idle: float | None = None) -> Settings:
    """Makes settings from the values of a command line, by the names of their options."""
    return Settings(
        **{name: values.get(option.dest, option.default) for name, option in _OPTIONS.items()},
        on_divergence=OnDivergence(values["on_divergence"]),
        scoring=_scoring_of(values),
        join=values["join"],
        idle=idle,
        prices=values.get(options.PRICE.dest),
    )


def _scoring_of(values: Mapping[str, Any]) -> ScoringPolicy:
    """Makes the scoring policy. Calls as many scorers at once as the scorer processes accept."""
    own = values.get("score_workers", 0) * values.get("score_concurrency", 1)
    return ScoringPolicy(
        tries=values["scorer_tries"],
        timeout=values["scorer_timeout"],
        concurrency=own or options.SCORER_CONCURRENCY.default,
    )
