"""The options of a run, each declared once: its name, type, default and help text.

From here come the options of the command line, the flags of the pytest plugin, the defaults of
`Settings` and of `@evaluation_test`, and the checks of their values. Imports nothing that takes
time: `holdfast --help`, and pytest sessions without evaluations, import this module.
"""

import argparse
import json
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
FRACTION = Number("0 to 1", lambda value: 0 <= value <= 1)
PENALTY = Number("-2 to 2", lambda value: -2 <= value <= 2)
FACTOR = Number("above 0", lambda value: value > 0)
_BIAS = Number("-100 to 100", lambda value: -100 <= value <= 100)
SHARE = Number("above 0 and at most 1", lambda value: 0 < value <= 1)
SECONDS = Number("longer than 0 seconds", lambda value: value > 0)
SECONDS_OR_NONE = Number("0 seconds or more", lambda value: value >= 0)


def text(value: str) -> str:
    if not value:
        raise ArgumentTypeError("wants a text, not an empty one")
    return value


def columns(value: str) -> list[tuple[str, str]]:
    """Fields of tasks, and the columns that hold them: `prompt=question,ground_truth=answer`."""
    pairs = [pair.partition("=") for pair in value.split(",")]
    if wrong := [field for field, equals, column in pairs if not (field and equals and column)]:
        raise ArgumentTypeError(f"wants FIELD=COLUMN, like prompt=question, not {wrong[0]!r}")
    return [(field.strip(), column.strip()) for field, _, column in pairs]


def token_ids(value: str) -> list[int]:
    """Token ids with commas between them."""
    return [_token(part) for part in value.split(",")]


def token_bias(value: str) -> tuple[int, float]:
    """The bias of one token: `42=-100`."""
    token, equals, bias = value.partition("=")
    if not equals:
        raise ArgumentTypeError(f"wants TOKEN=BIAS, like 42=-100, not {value!r}")
    return _token(token), _BIAS(bias)


def json_object(value: str) -> dict[str, object]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f'wants a JSON object, like {{"name": true}}, not {value:.100}')
    return found


def price_table(value: str) -> str:
    """The path of a table that can be read."""
    from pathlib import Path

    from holdfast.engine.export.prices import read_prices

    try:
        read_prices(Path(value))
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None
    return value


def _token(text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= 2**31:
        raise ArgumentTypeError(f"wants the id of a token, a whole number, not {text!r}")
    return int(text)


def workers(value: str) -> int | str:
    """How many workers: a number, or as many as are needed."""
    return value if value == "auto" else Whole(1, 100_000)(value)


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


def seconds(name: str, default: float | None, meaning: str, kind: Number = SECONDS) -> Option:
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
TASKS = Option(
    "tasks",
    "a file (JSONL, JSON, CSV, Parquet), a folder, hf:NAME:SPLIT, or FILE.py:FUNCTION",
    metavar="SOURCE",
)
SYSTEM = Option(
    "system",
    "a system message before each task's own messages; @FILE: the text of a file",
    text,
    metavar="TEXT|@FILE",
)
LIMIT = Option(
    "limit",
    "only the first N tasks (all); another N is another run",
    Whole(1),
    metavar="N",
)
COLUMNS = Option(
    "columns",
    "which column of the tasks is which field: prompt=question,ground_truth=answer",
    columns,
    [],
    "FIELD=COLUMN[,…]",
    action="extend",
)
JOURNAL = Option(
    "journal", "the file, or postgresql://USER@HOST/DATABASE ({})", None, "holdfast.db", "PATH"
)

# --- which processes, on which machines

CLUSTER = Option(
    "cluster", "have Ray start workers on a cluster: auto, or its head's address", None, None,
    "auto|HOST:PORT",
)  # fmt: skip
WORKERS = Option(
    "workers", "on the cluster; auto: as many as the queue needs ({})", workers, "auto", "N|auto"
)
CLUSTER_CODE = (
    Option("score-gpus", "of each scorer ({})", POSITIVE, 0.0, "N"),
    Option("requirements", "what the rollout needs installed on the nodes", metavar="FILE"),
    Option(
        "cluster-exclude", "a folder or file that does not travel", metavar="NAME", action="append"
    ),
    Option(
        "cluster-env", "one more environment variable that travels", metavar="NAME", action="append"
    ),
)
CLUSTER_PROCESSES = (
    CLUSTER,
    WORKERS,
    Option("worker-cpus", "of each worker ({})", POSITIVE, 1.0, "N"),
    Option("worker-gpus", "of each worker ({})", POSITIVE, 0.0, "N"),
    switch("off-gpu-nodes", "keep workers off nodes that have GPUs"),
    *CLUSTER_CODE,
)

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
STOP_TOKEN_IDS = Option(
    "stop-token-ids",
    "tokens that end a reply, beside the model's own; again for more",
    token_ids,
    [],
    "ID[,ID]",
    action="extend",
)
CHAT_TEMPLATE_KWARGS = Option(
    "chat-template-kwargs",
    'arguments for the model\'s chat template: {{"enable_thinking": false}}',
    json_object,
    metavar="JSON",
)
ALTERING = (
    Option("top-k", "draw from the K likeliest tokens; 0: from all ({})", Whole(0), 0, "K"),
    Option("min-p", "not from those below this share of the likeliest ({})", FRACTION, 0.0, "P"),
    Option("presence-penalty", "on tokens that a reply has already ({})", PENALTY, 0.0, "X"),
    Option("frequency-penalty", "the same, each time it has them ({})", PENALTY, 0.0, "X"),
    Option("repetition-penalty", "on tokens of prompt and reply; 1: none ({})", FACTOR, 1.0, "X"),
    Option(
        "logit-bias",
        "what is added to the logit of a token: 42=-100; again for more",
        token_bias,
        [],
        "TOKEN=BIAS",
        action="append",
    ),
    STOP_TOKEN_IDS,
    switch("ignore-eos", "go on after what would end a reply, up to --max-tokens"),
    switch("routed-experts", "record the experts that each token is routed to (vLLM, SGLang)"),
    CHAT_TEMPLATE_KWARGS,
    Option(
        "separate-reasoning",
        "set `<think>…</think>` at the beginning of a chat API's reply apart from its text",
        default=True,
        action=argparse.BooleanOptionalAction,
    ),
    Option(
        "extra-body",
        "more for each request to the engine, as it is; recorded, so no secrets",
        json_object,
        metavar="JSON",
    ),
)
KEEP_INTERRUPTED = switch(
    "keep-interrupted",
    "keep samples in which the process died during a call of an at_most_once tool (they fail)",
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
    *ALTERING,
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
    KEEP_INTERRUPTED,
)

# --- how it is worked on

CONCURRENCY = Option("concurrency", "trajectories at once ({})", Whole(1), 64, "N")
MAX_RETRY = Option(
    "max-retry", "how often a failed trajectory is tried again ({})", Whole(0), 3, "N"
)
MAX_FAILURES = Option(
    "max-failures", "stop when so many failed for good since the start (go on)", Whole(1), None, "N"
)
MAX_COST = Option(
    "max-cost",
    "stop when the run has cost this much, by the table of --price (go on)",
    FACTOR,
    None,
    "AMOUNT",
)
MAX_TOKENS_TOTAL = Option(
    "max-tokens-total",
    "stop when the run has used this many tokens, of prompts and replies together (go on)",
    Whole(1),
    None,
    "N",
)
PRICE = Option(
    "price",
    "a table of what a million tokens of each model cost (what HOLDFAST_PRICES names, if anything)",
    price_table,
    None,
    "FILE",
)
FAIL_ON_PERMANENT_FAILURE = Option(
    "fail-on-permanent-failure",
    "exit with 1 when a trajectory failed for good",
    default=False,
    action=argparse.BooleanOptionalAction,
)
SCORER_TRIES = Option("scorer-tries", "of one score ({})", Whole(1), 2, "N")
SCORE_WORKERS = Option(
    "score-workers",
    "score in so many processes of their own; 0: in this one ({})",
    Whole(0, 10_000),
    0,
    "N",
)
SCORE_CONCURRENCY = Option(
    "score-concurrency", "scores at once in each of those ({})", Whole(1), 1, "N"
)
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
SPENDING = (MAX_COST, MAX_TOKENS_TOTAL, PRICE)
BUDGETS = (
    CONCURRENCY,
    MAX_RETRY,
    MAX_FAILURES,
    *SPENDING,
    FAIL_ON_PERMANENT_FAILURE,
    Option("call-tries", "of one call to the engine ({})", Whole(1), 5, "N"),
    SCORER_TRIES,
    PARTIAL_TOKENS,
    DIALECT,
    ON_DIVERGENCE,
    API_KEY_ENV,
)
ATTEMPT_DEADLINE = seconds("attempt-deadline", 21600.0, "one attempt at a trajectory")
SCORER_TIMEOUT = seconds("scorer-timeout", 300.0, "one score")
LEASE = seconds("lease", 30.0, "after how much silence others may take the work over")
GRACE = seconds("grace", 10.0, "at a signal: how long calls in flight may finish", SECONDS_OR_NONE)
PATIENCE = seconds(
    "patience", 900.0, "how long to wait for an engine that is down", SECONDS_OR_NONE
)
RUN_DEADLINE = Option("run-deadline", "this command (none)", SECONDS, None, "SECONDS")
DEADLINES = (
    seconds("try-timeout", 1800.0, "one try of a call"),
    seconds("stall-timeout", 300.0, "how long a stream may send nothing"),
    seconds("call-deadline", 3600.0, "a call with all its tries"),
    ATTEMPT_DEADLINE,
    SCORER_TIMEOUT,
    PATIENCE,
    LEASE,
    GRACE,
    RUN_DEADLINE,
)

FULL_TRACEBACKS = switch(
    "full-tracebacks", "show every frame of a traceback, also those of failures that healed"
)
FORCE = switch("force", "write over a file, also where something in it is lost by that")

# --- when the run exists already

NEW = switch("new", "start another run, NAME-2 and so on")
ACCEPT_CHANGES = switch(
    "accept-changes", "go on although tasks, sampling or code changed; it is recorded"
)
JOIN = switch("join", "share the run with a live worker")
RETRY_FAILED = switch(
    "retry-failed",
    "try again those that failed for good; ask again for a judge's verdicts that could not be read",
)
