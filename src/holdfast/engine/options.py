"""The options of a run, each declared once: its name, type, default and help text.

From here come the options of the command line, the flags of the pytest plugin, the defaults of
`Settings` and of `@evaluation_test`, and the checks of their values. Imports nothing that takes
time: `holdfast --help`, and pytest sessions without evaluations, import this module.
"""

import argparse
import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.records.errors import UsageError

MAX_INTEGER = 2**63 - 1
MAX_SAMPLES = 1_000_000
"""Of one task; `records.run` says why."""
API_KEY = "HOLDFAST_API_KEY"


@dataclass(frozen=True)
class Whole:
    """A whole number."""

    least: int
    most: int = MAX_INTEGER

    def __call__(self, text: str) -> int:
        """From a command line; raises `ArgumentTypeError`."""
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"wants a whole number, not {text!r}") from None
        if wrong := self._wrong(value):
            raise ArgumentTypeError(f"{wrong}, not {text}")
        return value

    def check(self, name: str, value: object) -> None:
        """From Python; raises `UsageError`."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"{name} must be a whole number, not {value!r:.100}")
        if wrong := self._wrong(value):
            raise UsageError(f"{name} {wrong}, not {value}")

    def _wrong(self, value: int) -> str:
        if self.least < 0 and not self.least <= value <= self.most:
            return "must fit in 64 bits"
        if value < self.least:
            return f"must be {self.least} or more"
        return f"must be {self.least} to {self.most}" if value > self.most else ""


@dataclass(frozen=True)
class Number:
    """A number within a bound. A command line has no infinite ones."""

    bound: str
    fits: Callable[[float], bool]

    def __call__(self, text: str) -> float:
        """From a command line; raises `ArgumentTypeError`."""
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"wants a number, not {text!r}") from None
        if not math.isfinite(value):
            raise ArgumentTypeError(f"must be a finite number, {self.bound}, not {text}")
        if not self.fits(value):
            raise ArgumentTypeError(f"must be {self.bound}, not {text}")
        return value

    def check(self, name: str, value: object) -> None:
        """From Python; raises `UsageError`."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UsageError(f"{name} must be a number, not {value!r:.100}")
        if not self.fits(value):
            raise UsageError(f"{name} must be {self.bound}, not {value}")


FINITE = Number("of any size", lambda value: True)
POSITIVE = Number("0 or more", lambda value: value >= 0)
GROWTH = Number("1 or more", lambda value: value >= 1)
SHARE = Number("above 0 and at most 1", lambda value: 0 < value <= 1)
SECONDS = Number("longer than 0 seconds", lambda value: value > 0)
SECONDS_OR_NONE = Number("0 seconds or more", lambda value: value >= 0)


def text(value: str) -> str:
    if not value:
        raise ArgumentTypeError("wants a text, not an empty one")
    return value


class Option(NamedTuple):
    """One option. `{}` in its help text stands for the default."""

    name: str
    """As it is typed: `max-retry`."""
    help: str
    kind: Any = None
    """Reads the text: a `Whole`, a `Number`, or another function."""
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    action: Any = None

    def check(self, value: object, name: str = "") -> None:
        """Raises `UsageError` where a Python caller gave what the option cannot be. None, where
        that is the default, is no value."""
        if value is not None or self.default is not None:
            self.kind.check(name or self.dest, value)

    @property
    def dest(self) -> str:
        """Its name in Python: `max_retry`."""
        return self.name.replace("-", "_")

    def add_to(self, parser: "Adds", **changes: Any) -> None:
        """To a parser, or a group, of argparse."""
        parser.add_argument(f"--{self.name}", **self.keywords(**changes))

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """The arguments of argparse's `add_argument`; pytest's `addoption` has the same."""
        default = f"{self.default:g}" if isinstance(self.default, float) else self.default
        found = {
            "help": self.help.format(default),
            "type": self.kind,
            "default": self.default,
            "metavar": self.metavar,
            "choices": self.choices,
            "action": self.action,
        } | changes
        # A switch without a default would be False: no value, which may be the default, is None.
        return {
            name: value for name, value in found.items() if value is not None or name == "default"
        }


class Adds(Protocol):
    """A parser of argparse, or a group of one."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


def switch(name: str, meaning: str) -> Option:
    return Option(name, meaning, default=False, action="store_true")


def _seconds(name: str, default: float | None, meaning: str, kind: Number = SECONDS) -> Option:
    return Option(name, f"{meaning} ({{}})", kind, default, "SECONDS")


# --- which engine

POLICY = Option(
    "policy",
    "the inference engine; several times for several replicas; none: the embedded engine",
    metavar="URL",
    action="append",
)
DIALECT = Option(
    "dialect",
    "how to speak to the engine (found out)",
    choices=("vllm", "vllm-generate", "sglang", "fireworks", "chat"),
)
API_KEY_ENV = Option(
    "api-key-env",
    "the environment variable that holds the engine's key ({})",
    None,
    API_KEY,
    "NAME",
)
JOURNAL = Option("journal", "the file ({})", None, "holdfast.db", "PATH")

# --- what is sampled

SAMPLES = Option(
    "samples", "per task (1, or the rollout's own n)", Whole(1, MAX_SAMPLES), None, "N"
)
SEED = Option("seed", "derive each request's seed from N", Whole(-MAX_INTEGER - 1), None, "N")
REASONING_EFFORT = Option(
    "reasoning-effort",
    "how long the model thinks: low, medium, high, … (its own; refused where it has none)",
    metavar="LEVEL",
)
SAMPLING = (
    SAMPLES,
    SEED,
    Option("temperature", "0: always the likeliest token ({})", POSITIVE, 1.0, "T"),
    Option("top-p", "draw from the likeliest tokens that make up this share ({})", SHARE, 1.0, "P"),
    Option("max-tokens", "per reply ({})", Whole(1), 1024, "N"),
    Option(
        "stop",
        "a text that ends a reply when it is said; again for more",
        text,
        [],
        "TEXT",
        action="append",
    ),
    REASONING_EFFORT,
    Option(
        "tokenizer", "the folder of the model's tokenizer (what the engine names)", metavar="DIR"
    ),
    Option(
        "renderer",
        "how messages become tokens: a model family, template, or bytes (by the tokenizer)",
        metavar="NAME",
    ),
    Option(
        "scorer",
        "the function that rewards (`score` of the rollout's file, if there is one)",
        metavar="[FILE.py:]NAME",
    ),
    Option(
        "group-refill",
        "how often a sample that infrastructure broke is made anew ({})",
        Whole(0),
        1,
        "N",
    ),
    Option(
        "group-shortfall",
        "what becomes of a task's samples when some failed for good ({})",
        default="partial",
        choices=("partial", "drop"),
    ),
    Option("group-at-least", "partial: how many must be valid ({})", Whole(1), 1, "M"),
)

# --- how it is worked on

CONCURRENCY = Option("concurrency", "trajectories at once ({})", Whole(1), 64, "N")
MAX_RETRY = Option(
    "max-retry", "how often a failed trajectory is tried again ({})", Whole(0), 3, "N"
)
MAX_FAILURES = Option(
    "max-failures", "stop when so many failed for good since the start (go on)", Whole(1), None, "N"
)
FAIL_ON_PERMANENT_FAILURE = Option(
    "fail-on-permanent-failure",
    "exit with 1 when a trajectory failed for good",
    default=False,
    action=argparse.BooleanOptionalAction,
)
SCORER_TRIES = Option("scorer-tries", "of one score ({})", Whole(1), 2, "N")
SCORER_CONCURRENCY = Option("max-concurrent-evaluations", "scores at once", Whole(1), 32, "N")
PARTIAL_TOKENS = Option(
    "partial-tokens",
    "stream, and make each N tokens of an unfinished reply durable; 0: whole replies only (with "
    "--seed on vLLM: only these repeat, when interrupted)",
    Whole(0),
    0,
    "N",
)
ON_DIVERGENCE = Option(
    "on-divergence",
    "when the rollout no longer does what is recorded ({})",
    default="fork",
    choices=("fork", "fail"),
)
BUDGETS = (
    CONCURRENCY,
    MAX_RETRY,
    MAX_FAILURES,
    FAIL_ON_PERMANENT_FAILURE,
    Option("call-tries", "of one call to the engine ({})", Whole(1), 5, "N"),
    SCORER_TRIES,
    PARTIAL_TOKENS,
    DIALECT,
    ON_DIVERGENCE,
    API_KEY_ENV,
)
ATTEMPT_DEADLINE = _seconds("attempt-deadline", 21600.0, "one attempt at a trajectory")
SCORER_TIMEOUT = _seconds("scorer-timeout", 300.0, "one score")
LEASE = _seconds("lease", 30.0, "after how much silence others may take the work over")
GRACE = _seconds("grace", 10.0, "at a signal: how long calls in flight may finish", SECONDS_OR_NONE)
RUN_DEADLINE = Option("run-deadline", "this command (none)", SECONDS, None, "SECONDS")
DEADLINES = (
    _seconds("try-timeout", 1800.0, "one try of a call"),
    _seconds("stall-timeout", 300.0, "how long a stream may send nothing"),
    _seconds("call-deadline", 3600.0, "a call with all its tries"),
    ATTEMPT_DEADLINE,
    SCORER_TIMEOUT,
    _seconds("patience", 900.0, "how long to wait for an engine that is down", SECONDS_OR_NONE),
    LEASE,
    GRACE,
    RUN_DEADLINE,
)

# --- when the run exists already

NEW = switch("new", "start another run, NAME-2 and so on")
ACCEPT_CHANGES = switch(
    "accept-changes", "go on although tasks, sampling or code changed; it is recorded"
)
JOIN = switch("join", "share the run with a live worker")
RETRY_FAILED = switch("retry-failed", "try again those that failed for good")
