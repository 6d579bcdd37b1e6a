"""Settings: how a run is worked on. None of them changes what it samples."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, structs

from holdfast.engine import options
from holdfast.records.errors import UsageError
from holdfast.rollout.replay.run_context import OnDivergence

RetryRule = Callable[[Exception], bool | None]
"""Whether an attempt that raised this is tried again: True, within `max_retry`, whatever its cause;
False, not at all; None, as its cause says."""


class ScoringPolicy(Struct, frozen=True):
    """A scorer is retried by its own rules; it never causes a new rollout."""

    tries: int = options.SCORER_TRIES.default
    timeout: float = options.SCORER_TIMEOUT.default
    concurrency: int = options.SCORER_CONCURRENCY.default

    def __post_init__(self) -> None:
        options.SCORER_TRIES.check(self.tries, "a scorer's tries")
        options.SCORER_CONCURRENCY.check(self.concurrency, "a scorer's concurrency")
        options.SCORER_TIMEOUT.check(self.timeout, "a scorer's timeout")


class Settings(Struct, frozen=True):
    """How a run is worked on. None of it changes what is sampled, so it may change on a resume."""

    concurrency: int = options.CONCURRENCY.default
    max_retry: int = options.MAX_RETRY.default
    """How often a failed attempt is tried again, with replay."""
    max_failures: int | None = options.MAX_FAILURES.default
    """Stop once so many trajectories have failed for good since the start; None: go on."""
    attempt_deadline: float = options.ATTEMPT_DEADLINE.default
    run_deadline: float | None = options.RUN_DEADLINE.default
    lease_seconds: float = options.LEASE.default
    grace: float = options.GRACE.default
    """How long generations in flight may finish after the run is asked to stop."""
    backoff: float = 1.0
    backoff_cap: float = 30.0
    backoff_growth: float = 2.0
    """By how much the longest wait grows with each failure; 1: every wait is `backoff` long."""
    retry_rule: RetryRule | None = None
    on_divergence: OnDivergence = OnDivergence(options.ON_DIVERGENCE.default)
    scoring: ScoringPolicy = ScoringPolicy()
    partial_tokens: int = options.PARTIAL_TOKENS.default
    """Makes the tokens of an unfinished generation durable, this many at a time; 0: off."""
    join: bool = options.JOIN.default
    """Share the run with other live workers instead of refusing to start."""

    def __post_init__(self) -> None:
        if self.on_divergence not in list(OnDivergence):
            known = ", ".join(OnDivergence)
            raise UsageError(f"on_divergence={self.on_divergence!r} is none of {known}")
        # Its name is as good as the member; it is compared by identity.
        structs.force_setattr(self, "on_divergence", OnDivergence(self.on_divergence))
        for name, option in _OPTIONS.items():
            option.check(getattr(self, name), name)
        options.SECONDS_OR_NONE.check("backoff", self.backoff)
        options.SECONDS_OR_NONE.check("backoff_cap", self.backoff_cap)
        options.GROWTH.check("backoff_growth", self.backoff_growth)
        if not isinstance(self.scoring, ScoringPolicy):
            raise UsageError(f"scoring is a ScoringPolicy(…), not {self.scoring!r:.100}")


_OPTIONS = {
    "concurrency": options.CONCURRENCY,
    "max_retry": options.MAX_RETRY,
    "max_failures": options.MAX_FAILURES,
    "attempt_deadline": options.ATTEMPT_DEADLINE,
    "run_deadline": options.RUN_DEADLINE,
    "lease_seconds": options.LEASE,
    "grace": options.GRACE,
    "partial_tokens": options.PARTIAL_TOKENS,
}


def settings_of(values: Mapping[str, Any]) -> Settings:
    """From the values of a command line, by the names of their options."""
    return Settings(
        **{name: values[option.dest] for name, option in _OPTIONS.items()},
        on_divergence=OnDivergence(values["on_divergence"]),
        scoring=ScoringPolicy(tries=values["scorer_tries"], timeout=values["scorer_timeout"]),
        join=values["join"],
    )
