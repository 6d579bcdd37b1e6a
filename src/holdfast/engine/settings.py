"""Settings: how a run is worked on. None of them changes what it samples."""

from msgspec import Struct, structs

from holdfast.records.errors import UsageError
from holdfast.rollout.session import OnDivergence


class ScoringPolicy(Struct, frozen=True):
    """A scorer is retried by its own rules; it never causes a new rollout."""

    tries: int = 2
    timeout: float = 300.0
    concurrency: int = 32

    def __post_init__(self) -> None:
        if self.tries < 1 or self.concurrency < 1:
            raise UsageError("scoring wants 1 or more tries, and 1 or more at once")
        if self.timeout <= 0:
            raise UsageError("a scorer's deadline must be longer than 0 seconds")


class Settings(Struct, frozen=True):
    concurrency: int = 64
    max_retry: int = 3
    """How often a failed attempt is tried again, with replay."""
    attempt_deadline: float = 6 * 3600.0
    run_deadline: float | None = None
    lease_seconds: float = 30.0
    grace: float = 10.0
    """How long generations in flight may finish after the run is asked to stop."""
    backoff: float = 1.0
    backoff_cap: float = 30.0
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
        if self.concurrency < 1:
            raise UsageError(f"concurrency must be 1 or more, not {self.concurrency}")
        if self.max_retry < 0:
            raise UsageError(f"max-retry must be 0 or more, not {self.max_retry}")
        if self.partial_tokens < 0:
            raise UsageError(f"partial-tokens must be 0 or more, not {self.partial_tokens}")
        if self.lease_seconds <= 0 or self.attempt_deadline <= 0:
            raise UsageError("deadlines and leases must be longer than 0 seconds")
