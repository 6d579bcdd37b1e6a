"""Retries, as eval-protocol writes them down.

`max_tries` is how often a failed rollout is tried again, and the delays are ours; which failures
are worth another try is decided by their cause (docs/failures.md), and lists of exception classes
change nothing about that. Retries start from the journal, never from another attempt's leftovers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from holdfast.records.errors import UsageError


@dataclass
class BackoffConfig:
    """How long a failed rollout waits, and how often it is tried again."""

    strategy: str = "expo"
    base_delay: float = 1.0
    max_delay: float = 60.0
    max_tries: int = 3
    jitter: Callable[[float], float] | None = None
    """Ignored: delays are always spread, so that retries do not come as a herd."""
    factor: float = 2.0
    raise_on_giveup: bool = True
    """False: a row that failed for good does not fail the test."""
    giveup_func: Callable[[Exception], bool] | None = None


@dataclass
class ExceptionHandlerConfig:
    retryable_exceptions: set[type[Exception]] = field(default_factory=set)
    """Ignored: the cause of a failure decides."""
    backoff_config: BackoffConfig = field(default_factory=BackoffConfig)


def get_default_exception_handler_config() -> ExceptionHandlerConfig:
    return ExceptionHandlerConfig()


class Retrying(Struct, frozen=True):
    """What of it the engine is told."""

    max_retry: int | None = None
    backoff: float | None = None
    backoff_cap: float | None = None
    fail_on_permanent_failure: bool = True


def retrying_of(config: object) -> Retrying:
    """Reads ours, eval-protocol's own, and anything that is shaped like them."""
    if config is None:
        return Retrying()
    backoff = getattr(config, "backoff_config", config)
    tries = getattr(backoff, "max_tries", None)
    if not isinstance(tries, int) or tries < 0:
        raise UsageError(
            "exception_handler_config wants an ExceptionHandlerConfig whose "
            f"backoff_config.max_tries is 0 or more, not {config!r:.200}"
        )
    if getattr(backoff, "giveup_func", None) is not None and _is_ours(backoff):
        raise UsageError(
            "exception_handler_config: giveup_func is not supported; what is worth another try is "
            "decided by the failure's cause"
        )
    return Retrying(
        max_retry=tries,
        backoff=float(getattr(backoff, "base_delay", 1.0)),
        backoff_cap=float(getattr(backoff, "max_delay", 60.0)),
        fail_on_permanent_failure=bool(getattr(backoff, "raise_on_giveup", True)),
    )


def _is_ours(backoff: object) -> bool:
    """Theirs always has one, which never gives up."""
    return isinstance(backoff, BackoffConfig)
