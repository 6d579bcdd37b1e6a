"""Settings: how a run is worked on. None of them changes what it samples."""

from collections.abc import Callable

from msgspec import Struct, structs

from holdfast.records.bounds import check_number, check_whole
from holdfast.records.errors import UsageError
from holdfast.rollout.replay.session import OnDivergence


def _check_longer(name: str, seconds: float) -> None:
    check_number(name, seconds)
    if not seconds > 0:
        raise UsageError(f"{name} must be longer than 0 seconds, not {seconds}")


def _check_seconds(name: str, seconds: float) -> None:
    check_number(name, seconds)
    if not seconds >= 0:
        raise UsageError(f"{name} must be 0 seconds or more, not {seconds}")


RetryRule = Callable[[Exception], bool | None]
"""Whether an attempt that raised this is tried again: True, within `max_retry`, whatever its cause;
False, not at all; None, as its cause says."""


class ScoringPolicy(Struct, frozen=True):
    """A scorer is retried by its own rules; it never causes a new rollout."""

    tries: int = 2
    timeout: float = 300.0
    concurrency: int = 32

    def __post_init__(self) -> None:
        check_whole("a scorer's tries", self.tries, least=1)
        check_whole("a scorer's concurrency", self.concurrency, least=1)
        _check_longer("a scorer's timeout", self.timeout)


class Settings(Struct, frozen=True):
    """How a run is worked on. None of it changes what is sampled, so it may change on a resume."""

    concurrency: int = 64
    max_retry: int = 3
    """How often a failed attempt is tried again, with replay."""
    max_failures: int | None = None
    """Stop once so many trajectories have failed for good since the start; None: go on."""
    attempt_deadline: float = 6 * 3600.0
    run_deadline: float | None = None
    lease_seconds: float = 30.0
    grace: float = 10.0
    """How long generations in flight may finish after the run is asked to stop."""
    backoff: float = 1.0
    backoff_cap: float = 30.0
    backoff_growth: float = 2.0
    """By how much the longest wait grows with each failure; 1: every wait is `backoff` long."""
    retry_rule: RetryRule | None = None
    on_divergence: OnDivergence = OnDivergence.FORK
    scoring: ScoringPolicy = ScoringPolicy()
    partial_tokens: int = 0
    """Makes the tokens of an unfinished generation durable, this many at a time; 0: off."""
    join: bool = False
    """Share the run with other live workers instead of refusing to start."""

    def __post_init__(self) -> None:
        if self.on_divergence not in list(OnDivergence):
            known = ", ".join(OnDivergence)
            raise UsageError(f"on_divergence={self.on_divergence!r} is none of {known}")
        # Its name is as good as the member; it is compared by identity.
        structs.force_setattr(self, "on_divergence", OnDivergence(self.on_divergence))
        check_whole("concurrency", self.concurrency, least=1)
        check_whole("max_retry", self.max_retry, least=0)
        if self.max_failures is not None:
            check_whole("max_failures", self.max_failures, least=1)
        check_whole("partial_tokens", self.partial_tokens, least=0)
        _check_longer("lease_seconds", self.lease_seconds)
        _check_longer("attempt_deadline", self.attempt_deadline)
        if self.run_deadline is not None:
            _check_longer("run_deadline", self.run_deadline)
        for name in ("grace", "backoff", "backoff_cap"):
            _check_seconds(name, getattr(self, name))
        check_number("backoff_growth", self.backoff_growth)
        if self.backoff_growth < 1:
            raise UsageError(f"backoff_growth must be 1 or more, not {self.backoff_growth}")
        if not isinstance(self.scoring, ScoringPolicy):
            raise UsageError(f"scoring is a ScoringPolicy(…), not {self.scoring!r:.100}")
