"""Reads eval-protocol's configuration of retries.

`max_tries` is how often a failed rollout is tried again. The delays, `giveup_func` and
`retryable_exceptions` have the same meaning as in eval-protocol. Without a configuration, the cause
of a failure decides (docs/failures.md). A retry starts from the records in the journal, and never
uses anything else that another attempt left behind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from holdfast.engine.settings import RetryRule
from holdfast.records.errors import HoldfastError, UsageError


class RetriedByCause(Exception):
    """A placeholder in `retryable_exceptions` for Holdfast's usual rule: connection errors,
    timeouts and other infrastructure errors are retried as often as allowed, and a bug is retried
    once. It is never raised."""


@dataclass
class BackoffConfig:
    """How often a failed rollout is tried again, and how long it waits before each try."""

    strategy: str = "expo"
    """`expo` waits up to `base_delay` after the first failure, up to `factor` times as long after
    each further failure, and never longer than `max_delay`. The actual delays are random, so that
    retries do not come all at once. `constant` waits `base_delay` each time."""
    base_delay: float = 1.0
    max_delay: float = 60.0
    max_tries: int = 3
    jitter: Callable[[float], float] | None = None
    """Has no effect. Delays of `expo` are always random, and delays of `constant` never are."""
    factor: float = 2.0
    raise_on_giveup: bool = True
    """If False, a row that failed for good does not fail the test."""
    giveup_func: Callable[[Exception], bool] | None = None
    """Called with each error of an attempt. If it returns True, the retries end."""


@dataclass
class ExceptionHandlerConfig:
    retryable_exceptions: set[type[Exception]] = field(
        default_factory=lambda: get_default_retryable_exceptions()
    )
    """Exceptions of rollouts and processors that are retried. Other exceptions are retried only if
    `RetriedByCause` is in the set, by its rule. Failures of engines and environments are retried by
    their cause."""
    backoff_config: BackoffConfig = field(default_factory=BackoffConfig)


def get_default_retryable_exceptions() -> set[type[Exception]]:
    return {RetriedByCause}


def get_default_exception_handler_config() -> ExceptionHandlerConfig:
    """Returns the configuration for an evaluation that gives none."""
    return ExceptionHandlerConfig()


class Retrying(Struct, frozen=True):
    """The part of the configuration that the engine needs."""

    settings: Mapping[str, Any] = {}
    """The fields of `Settings` that the configuration changes."""
    fail_on_permanent_failure: bool = True


def retrying_of(config: object) -> Retrying:
    """Reads a configuration of Holdfast, of eval-protocol, or any object with the same fields."""
    if config is None:
        return Retrying()
    backoff = getattr(config, "backoff_config", config)
    tries = getattr(backoff, "max_tries", None)
    if not isinstance(tries, int) or tries < 0:
        raise UsageError(
            "exception_handler_config wants an ExceptionHandlerConfig with "
            f"backoff_config.max_tries of 0 or more, not {config!r:.200}"
        )
    settings = {
        "max_retry": tries,
        "backoff": float(getattr(backoff, "base_delay", 1.0)),
        "backoff_cap": float(getattr(backoff, "max_delay", 60.0)),
        "backoff_growth": _growth(backoff),
        "retry_rule": _rule(
            _listed(getattr(config, "retryable_exceptions", None)),
            _function(getattr(backoff, "giveup_func", None)),
        ),
    }
    return Retrying(settings, bool(getattr(backoff, "raise_on_giveup", True)))


def _growth(backoff: object) -> float:
    strategy, factor = getattr(backoff, "strategy", "expo"), getattr(backoff, "factor", 2.0)
    if strategy == "constant":
        return 1.0
    if strategy != "expo":
        raise UsageError(
            f"exception_handler_config: strategy={strategy!r} is none of expo, constant"
        )
    if not isinstance(factor, int | float) or not factor > 1:
        raise UsageError(
            f"exception_handler_config: factor={factor!r} has to be more than 1; delays that do "
            'not grow are strategy="constant"'
        )
    return float(factor)


def _listed(kinds: object) -> tuple[type[BaseException], ...] | None:
    """Returns the listed exceptions, or None without a list."""
    if kinds is None:
        return None
    listed = tuple(kinds) if isinstance(kinds, Iterable) else (kinds,)
    for kind in listed:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise UsageError(
                f"exception_handler_config: retryable_exceptions wants exception classes, not "
                f"{kind!r:.200}"
            )
    return listed


def _function(giveup: object) -> Callable[[Exception], object] | None:
    if giveup is None or callable(giveup):
        return giveup
    raise UsageError(
        f"exception_handler_config: giveup_func wants a function of an error, not {giveup!r:.200}"
    )


def _rule(
    listed: tuple[type[BaseException], ...] | None, giveup: Callable[[Exception], object] | None
) -> RetryRule | None:
    if giveup is None and (listed is None or listed == (RetriedByCause,)):
        return None

    def rule(error: Exception) -> bool | None:
        if giveup is not None and giveup(error):
            return False
        if listed is None:
            return None
        if isinstance(error, HoldfastError):
            # An error that a tool raised is a cause. A call that must not be repeated is not.
            return True if error.retryable and isinstance(error.__cause__, listed) else None
        if isinstance(error, listed):
            return True
        return None if RetriedByCause in listed else False

    return rule
