"""The options of a run, each declared once: its name, type, default and help text.

The command line, the pytest plugin, the defaults of `Settings` and of `@evaluation_test`, and the
checks of values all use these declarations. This module imports nothing slow, because `holdfast
--help` and pytest sessions without evaluations import it.
"""

import argparse
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from holdfast.engine.option_kinds import (
    FACTOR,
    FRACTION,
    MAX_INTEGER,
    PENALTY,
    POSITIVE,
    SECONDS,
    SECONDS_OR_NONE,
    SHARE,
    Number,
    Whole,
    columns,
    json_object,
    price_table,
    text,
    token_bias,
    token_ids,
    visible_text,
    workers,
)

MAX_SAMPLES = 1_000_000
"""The most samples of one task. `records.run` explains the limit."""
API_KEY = "HOLDFAST_API_KEY"


class Option(NamedTuple):
    """One option. `{}` in its help text stands for the default."""

    name: str
    """The name as it is typed: `max-retry`."""
    help: str
    kind: Any = None
    """Reads the text: a `Whole`, a `Number`, or another function."""
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    action: Any = None

    def check(self, value: object, name: str = "") -> None:
        """Raises `UsageError` if a Python caller gave an invalid value. None is valid if the
        default is None.
        """
        if value is not None or self.default is not None:
            self.kind.check(name or self.dest, value)

    @property
    def dest(self) -> str:
        """The option's name in Python: `max_retry`."""
        return self.name.replace("-", "_")

    def add_to(self, parser: "Adds", **changes: Any) -> None:
        """Adds the option to an argparse parser or group."""
        parser.add_argument(f"--{self.name}", **self.keywords(**changes))

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """Returns the keyword arguments for argparse's `add_argument` and pytest's `addoption`."""
        default = f"{self.default:g}" if isinstance(self.default, float) else self.default
        keywords_made = {
            "help": self.help.format(default),
            "type": self.kind,
            "default": self.default,
            "metavar": self.metavar,
            "choices": self.choices,
            "action": self.action,
        } | changes
        # Without a default, a switch would be False. None means that the option was not passed.
        return {
            name: value
            for name, value in keywords_made.items()
            if value is not None or name == "default"
        }


class Adds(Protocol):
    """An argparse parser, or an argument group of a parser."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


def add_group(parser: argparse.ArgumentParser, title: str, listed: Iterable[Option]) -> None:
    """Adds options to the parser under a title, which says what they are for."""
    group = parser.add_argument_group(title)
    for option in listed:
        option.add_to(group)


def switch(name: str, meaning: str) -> Option:
    return Option(name, meaning, default=False, action="store_true")


def seconds(name: str, default: float | None, meaning: str, kind: Number = SECONDS) -> Option:
    return Option(name, f"{meaning} (default: {{}})", kind, default, "SECONDS")


# --- which engine

POLICY = Option(
    "policy",
    "sample from the engine at URL; repeatable (default: embedded)",
    metavar="URL",
    action="append",
)
DIALECT = Option(
    "dialect",
    "use this API of the engine (default: detect it)",
    choices=("vllm", "vllm-generate", "sglang", "fireworks", "chat"),
)
API_KEY_ENV = Option(
    "api-key-env",
    "read the engine's key from this variable (default: {})",
    None,
    API_KEY,
    "NAME",
)
TASKS = Option(
    "tasks",
    "read tasks from a file, folder, hf:NAME, harbor:DIR or FILE.py:NAME",
    metavar="SOURCE",
)
SYSTEM = Option(
    "system",
    "begin each task with this system message, or the text of @FILE",
    visible_text,
    metavar="TEXT|@FILE",
)
LIMIT = Option(
    "limit",
    "use only the first N tasks (part of the run's identity)",
    Whole(1),
    metavar="N",
)
COLUMNS = Option(
    "columns",
    "read fields from other columns: prompt=question,ground_truth=answer",
    columns,
    [],
    "FIELD=COLUMN[,…]",
    action="extend",
)
JOURNAL = Option(
    "journal",
    "use this journal: a file, or postgresql://… (default: {})",
    None,
    "holdfast.db",
    "PATH",
)

# --- which processes, on which machines

CLUSTER = Option(
    "cluster", "let Ray start workers on a cluster: auto, or the address of its head", None, None,
    "auto|HOST:PORT",
)  # fmt: skip
WORKERS = Option(
    "workers",
    "start N workers; auto: as many as the queue needs (default: {})",
    workers,
    "auto",
    "N|auto",
)
CLUSTER_CODE = (
    Option("score-gpus", "reserve N GPUs for each scorer (default: {})", POSITIVE, 0.0, "N"),
    Option("requirements", "install these pip requirements on the nodes", metavar="FILE"),
    Option(
        "cluster-exclude",
        "do not copy this folder or file to the nodes; repeatable",
        metavar="NAME",
        action="append",
    ),
    Option(
        "cluster-env",
        "copy this environment variable to the nodes; repeatable",
        metavar="NAME",
        action="append",
    ),
)
CLUSTER_PROCESSES = (
    CLUSTER,
    WORKERS,
    Option("worker-cpus", "reserve N CPUs for each worker (default: {})", POSITIVE, 1.0, "N"),
    Option("worker-gpus", "reserve N GPUs for each worker (default: {})", POSITIVE, 0.0, "N"),
    switch("off-gpu-nodes", "start no workers on nodes that have GPUs"),
    *CLUSTER_CODE,
)

# --- what is sampled

SAMPLES = Option(
    "samples",
    "roll out each task N times (default: 1, or the rollout's own n)",
    Whole(1, MAX_SAMPLES),
    None,
    "N",
)
SEED = Option("seed", "derive the seed of each request from N", Whole(-MAX_INTEGER - 1), None, "N")
REASONING_EFFORT = Option(
    "reasoning-effort",
    "tell the model how long to think: low, high, … (default: its own)",
    metavar="LEVEL",
)
STOP_TOKEN_IDS = Option(
    "stop-token-ids",
    "also end a reply at these tokens; repeatable",
    token_ids,
    [],
    "ID[,ID]",
    action="extend",
)
CHAT_TEMPLATE_KWARGS = Option(
    "chat-template-kwargs",
    'give the chat template arguments: {{"enable_thinking": false}}',
    json_object,
    metavar="JSON",
)
ALTERING = (
    Option(
        "top-k", "sample from the K likeliest tokens; 0 means all (default: {})", Whole(0), 0, "K"
    ),
    Option(
        "min-p",
        "leave out tokens less likely than P times the likeliest (default: {})",
        FRACTION,
        0.0,
        "P",
    ),
    Option(
        "presence-penalty",
        "penalize tokens that the reply already contains (default: {})",
        PENALTY,
        0.0,
        "X",
    ),
    Option(
        "frequency-penalty",
        "penalize a token each time that it occurs in the reply (default: {})",
        PENALTY,
        0.0,
        "X",
    ),
    Option(
        "repetition-penalty",
        "penalize tokens of prompt and reply by this factor (default: {})",
        FACTOR,
        1.0,
        "X",
    ),
    Option(
        "logit-bias",
        "add this to the logit of a token: 42=-100; repeatable",
        token_bias,
        [],
        "TOKEN=BIAS",
        action="append",
    ),
    STOP_TOKEN_IDS,
    switch("ignore-eos", "do not stop at the end token; sample --max-tokens tokens"),
    switch("routed-experts", "record which experts computed each token (vLLM, SGLang)"),
    CHAT_TEMPLATE_KWARGS,
    Option(
        "separate-reasoning",
        "move a chat API's `<think>…</think>` to the reply's reasoning",
        default=True,
        action=argparse.BooleanOptionalAction,
    ),
    Option(
        "extra-body",
        "add these fields to each request (no secrets: they are recorded)",
        json_object,
        metavar="JSON",
    ),
)
KEEP_INTERRUPTED = switch(
    "keep-interrupted",
    "keep samples whose process died during an at_most_once tool call",
)
SAMPLING = (
    SAMPLES,
    SEED,
    Option(
        "temperature",
        "sample at this temperature; 0 takes the likeliest token (default: {})",
        POSITIVE,
        1.0,
        "T",
    ),
    Option(
        "top-p",
        "sample from the likeliest tokens that add up to P (default: {})",
        SHARE,
        1.0,
        "P",
    ),
    Option(
        "max-tokens",
        "limit each reply to N tokens (default: {})",
        Whole(1),
        1024,
        "N",
    ),
    Option(
        "stop",
        "end a reply at this text; repeatable",
        text,
        [],
        "TEXT",
        action="append",
    ),
    REASONING_EFFORT,
    *ALTERING,
    Option("tokenizer", "use the tokenizer in this folder (default: the engine's)", metavar="DIR"),
    Option(
        "renderer",
        "render prompts as this model family does; or: template, bytes",
        metavar="NAME",
    ),
)
GROUPS = (
    Option(
        "group-refill",
        "replace a sample lost to infrastructure up to N times (default: {})",
        Whole(0),
        1,
        "N",
    ),
    Option(
        "group-shortfall",
        "keep or drop a group that lost samples (default: {})",
        default="partial",
        choices=("partial", "drop"),
    ),
    Option(
        "group-at-least",
        "drop all samples of a task if fewer than M are valid (default: {})",
        Whole(1),
        1,
        "M",
    ),
    KEEP_INTERRUPTED,
)

# --- how it is worked on

CONCURRENCY = Option(
    "concurrency",
    "run up to N trajectories at once (default: {})",
    Whole(1),
    64,
    "N",
)
MAX_RETRY = Option(
    "max-retry", "retry a failed trajectory up to N times (default: {})", Whole(0), 3, "N"
)
MAX_FAILURES = Option(
    "max-failures",
    "stop after N trajectories failed permanently (default: never)",
    Whole(1),
    None,
    "N",
)
MAX_COST = Option(
    "max-cost",
    "stop when the run has cost this much (default: never); needs --price",
    FACTOR,
    None,
    "AMOUNT",
)
MAX_TOKENS_TOTAL = Option(
    "max-tokens-total",
    "stop after N tokens of prompts and replies (default: never)",
    Whole(1),
    None,
    "N",
)
PRICE = Option(
    "price",
    "compute costs from this price table (default: $HOLDFAST_PRICES)",
    price_table,
    None,
    "FILE",
)
FAIL_ON_PERMANENT_FAILURE = Option(
    "fail-on-permanent-failure",
    "exit with code 1 if a trajectory fails after all its retries",
    default=False,
    action=argparse.BooleanOptionalAction,
)
SCORER_TRIES = Option(
    "scorer-tries", "call a scorer up to N times for one score (default: {})", Whole(1), 2, "N"
)


class _OneScorer(argparse.Action):
    """Stores the scorer. Refuses a second one, because a run has one reward."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        first = getattr(namespace, self.dest, None)
        if first not in (None, values):
            raise argparse.ArgumentError(
                self, f"{first} and {values}: give one function, which may add up others"
            )
        setattr(namespace, self.dest, values)


SCORER = Option(
    "scorer",
    "score with this function, or verl:FILE.py, or trl:FILE.py:NAME",
    metavar="[FILE.py:]NAME",
    action=_OneScorer,
)
SCORE_WORKERS = Option(
    "score-workers",
    "score in N separate processes; 0: in this process (default: {})",
    Whole(0, 10_000),
    0,
    "N",
)
SCORE_CONCURRENCY = Option(
    "score-concurrency", "compute N scores at once in each process (default: {})", Whole(1), 1, "N"
)
SCORER_CONCURRENCY = Option(
    "max-concurrent-evaluations", "judge up to N rows at once (default: {})", Whole(1), 32, "N"
)
PARTIAL_TOKENS = Option(
    "partial-tokens",
    "record unfinished replies every N tokens; 0: never (default: {})",
    Whole(0),
    0,
    "N",
)
ON_DIVERGENCE = Option(
    "on-divergence",
    "fork or fail if a replay differs from its record (default: {})",
    default="fork",
    choices=("fork", "fail"),
)
SPENDING = (MAX_COST, MAX_TOKENS_TOTAL, PRICE)
RETRIES = (
    CONCURRENCY,
    MAX_RETRY,
    MAX_FAILURES,
    FAIL_ON_PERMANENT_FAILURE,
    ON_DIVERGENCE,
)
CONNECTION = (
    API_KEY_ENV,
    DIALECT,
    PARTIAL_TOKENS,
    Option("call-tries", "send a request up to N times (default: {})", Whole(1), 5, "N"),
)
ATTEMPT_DEADLINE = seconds(
    "attempt-deadline", 21600.0, "give up one attempt at a trajectory after this time"
)
SCORER_TIMEOUT = seconds("scorer-timeout", 300.0, "give up a call of the scorer after this time")
LEASE = seconds("lease", 30.0, "let others take over when a worker is silent this long")
GRACE = seconds(
    "grace", 10.0, "at Ctrl-C, let calls in flight finish for this time", SECONDS_OR_NONE
)
PATIENCE = seconds("patience", 900.0, "wait this long for an engine that is down", SECONDS_OR_NONE)
RUN_DEADLINE = Option(
    "run-deadline", "stop the command after this time (default: never)", SECONDS, None, "SECONDS"
)
DEADLINES = (
    seconds("try-timeout", 1800.0, "give up one try of a request after this time"),
    seconds("stall-timeout", 300.0, "give up a stream that sends nothing for this time"),
    seconds("call-deadline", 3600.0, "end all tries of a request after this time"),
    ATTEMPT_DEADLINE,
    PATIENCE,
    LEASE,
    GRACE,
    RUN_DEADLINE,
)

SCORING = (SCORER, SCORER_TRIES, SCORER_TIMEOUT, SCORE_WORKERS, SCORE_CONCURRENCY)

FULL_TRACEBACKS = switch(
    "full-tracebacks", "show whole tracebacks, also of failures that a retry mended"
)
OTEL = Option(
    "otel", "send spans to this OpenTelemetry collector (see `holdfast trace`)", str, None, "URL"
)
PRINTING = (
    FULL_TRACEBACKS,
    switch("json", "print the report as JSON"),
    switch("quiet", "show no progress"),
    switch("view", "serve `holdfast view` until the command ends"),
    OTEL,
)
FORCE = switch("force", "replace the file even if it holds data that the new one lacks")

# --- when the run exists already

NEW = switch("new", "begin a new run (NAME-2, NAME-3, …), and reuse no recorded samples")
ACCEPT_CHANGES = switch(
    "accept-changes",
    "continue although tasks, sampling or code changed; record the change",
)
MODEL = Option(
    "model",
    "sample from this model; for the embedded engine, a model's folder",
    metavar="NAME",
)
RUN = Option(
    "run",
    "name the run (default: the file's name and a number: agent-1)",
    metavar="NAME",
)
DRY_RUN = switch("dry-run", "only check; print what would be sampled, and the first prompt")
JOIN = switch("join", "work on the run beside its other workers")
RETRY_FAILED = switch(
    "retry-failed",
    "retry failed trajectories, and verdicts that could not be read",
)
WORLD = Option(
    "world",
    "give each trajectory a container of docker:IMAGE or podman:IMAGE",
    visible_text,
    metavar="SPEC",
)
AGENT = Option(
    "agent",
    "run an agent in each container: terminal, oracle or a command",
    visible_text,
    metavar="AGENT",
)
WORLDS = Option("worlds", "make up to N containers at once (default: {})", Whole(1), 8, metavar="N")
ONCE = ("--new", "--fresh", "--accept-changes", "--retry-failed")
"""Options that are left out when a command is repeated to continue its run."""
SUBJECTS = {
    "change how replies are sampled (part of the run's identity)": SAMPLING,
    "score trajectories": SCORING,
    "complete the groups of samples": GROUPS,
    "retry failures, or stop": RETRIES,
    "limit the cost": SPENDING,
    "give each trajectory its own container": (WORLD, WORLDS),
    "connect to the engine": CONNECTION,
    "set deadlines": DEADLINES,
    "change what is printed": PRINTING,
}
"""The options of every run, by their purpose."""
