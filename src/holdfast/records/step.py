"""What a trajectory's log is made of: a closed union of small records.

Each record is one row of the journal. They are arrays on the wire (field order is the format:
append new fields at the end, with defaults, and never reorder), and each kind has a number that
is never used again for another.

A step is named by its *path*: the ordinals of the scopes it lies in, joined by dots. The root
scope counts 0, 1, 2, …; parallel branches opened at step 3 count 3.0.0, 3.0.1, … and 3.1.0, ….
What the code of a tool or a value at step 3 awaits counts 3.0.0, 3.0.1, …, too.
"""

import functools
from enum import IntEnum, StrEnum

from msgspec import Struct

from holdfast.records.encoding.tokens import TOKEN_BYTES
from holdfast.records.failure import Failure
from holdfast.records.message import Message, put_reasoning_back
from holdfast.records.samples.experts import RoutedExperts
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING, Usage


class Contract(StrEnum):
    """What happens to a call in which the process died, so that nobody knows whether it took
    effect. A call that ended, even with an error or at its timeout, is repeated under any contract.
    """

    IDEMPOTENT = "idempotent"
    """Run again with the same idempotency key."""
    AT_MOST_ONCE = "at_most_once"
    """Never run again in this life: the model gets the result that the call was interrupted."""
    RESTART = "restart"
    """The trajectory starts anew: the state that the call changed is gone."""


INTERRUPTED_CALL = "interrupted"
"""The error of a tool call with an unknown outcome that is not repeated."""


class VersionSource(IntEnum):
    """Who says that a policy version sampled a span of tokens."""

    ENGINE = 0
    ASSUMED = 1
    UNKNOWN = 2


class VersionSpan(Struct, frozen=True, array_like=True, gc=False):
    """Tokens `start` to `end` (exclusive) of a completion were sampled by `version`."""

    version: str
    start: int
    end: int
    source: VersionSource = VersionSource.ENGINE


class _Record(Struct, frozen=True, array_like=True, gc=False):
    """The base of all records; it carries no fields so that each lists its own in order."""


TOOL_CALLS = "tool_calls"
STOPPED = frozenset({"stop", TOOL_CALLS})
"""The finish reasons of a reply that the model ended itself."""
ADDED = "added:"
"""How a reference to a message begins that another generation added: `added:PATH:INDEX`."""


class AttemptStarted(_Record, frozen=True, tag=1):
    attempt: int
    worker: str
    at: float


class Generated(_Record, frozen=True, tag=2):
    """One sampled completion.

    Its prompt is the first `keep` tokens of the stream of `base` (that step's prompt and
    completion) followed by `delta`. Storage so grows with the tokens, not with their square.
    """

    path: str
    fingerprint: bytes
    base: str
    keep: int
    delta: bytes
    ids: bytes
    logprobs: bytes
    engine_finish_reason: str
    """The engine's own word; everybody else reads `finish_reason`."""
    versions: tuple[VersionSpan, ...]
    message: Message
    added: tuple[Message | str, ...]
    """Messages new since `base`; a string refers to one recorded elsewhere (see `history`)."""
    model: str
    sampling: Sampling
    tries: int = 1
    seconds: float = 0.0
    prefix_break: str = ""
    """Why the prompt does not begin with the stream of `base`; "" when it does."""
    drafted: int = 0
    """How many of its first tokens are in `Drafted` records; `ids` and `logprobs` hold the rest.
    The fold joins them (see `history`), so no reader sees a generation in parts."""
    seams: tuple[int, ...] = ()
    """The tokens at which it went on after an interruption."""
    trainable: bool = True
    """False: from an engine that gives no tokens, so that only its message is known."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """What its engine's logprobs include, whatever the sampling."""
    usage: Usage | None = None
    """The usage of all its tries that sent something, also before a seam; None if no engine reports
    it."""
    tools: str | None = None
    """The schemas of the shown tools, as JSON. None: those of `base`; without `base`, those of the
    task."""
    experts: RoutedExperts | None = None
    """The routed experts of tokens that no earlier generation holds; None if they were not
    requested, or not given."""
    reasoning_tags: tuple[str, ...] = ()
    """Between which its reasoning was part of the content that a chat engine sent; (): it was not.
    """
    dialect: str = ""
    """The HTTP interface of the engine that ended it, as `--dialect` names it."""

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the words of chat APIs. A reply that the model ended with tool calls has
        `tool_calls`, even if an engine that only returns tokens says `stop`."""
        called = self.message.tool_calls and self.engine_finish_reason in STOPPED
        return TOOL_CALLS if called else self.engine_finish_reason

    @property
    def raw_text(self) -> str:
        """Its text with the reasoning that was part of it when a chat engine sent it."""
        return put_reasoning_back(self.message, self.reasoning_tags).text

    @property
    def billed(self) -> Usage:
        """What it used, including interrupted tries."""
        return self.counted if self.usage is None else self.usage

    @property
    def counted(self) -> Usage:
        """What it would have used without interruptions: the same in a disturbed run and an
        undisturbed one. So it does not count cached tokens."""
        if self.ids or self.delta:
            sampled = self.drafted + len(self.ids) // TOKEN_BYTES
            return Usage(self.keep + len(self.delta) // TOKEN_BYTES, sampled)
        usage = self.usage or NOTHING
        return Usage(usage.prompt_tokens, usage.completion_tokens, 0, usage.reasoning_tokens)

    @property
    def sources(self) -> tuple[str, ...]:
        """The paths of the generations that this one needs to be whole."""
        added = (item for item in self.added if isinstance(item, str) and item.startswith(ADDED))
        base = (self.base,) if self.base else ()
        return (*base, *(item.removeprefix(ADDED).partition(":")[0] for item in added))


class ToolIntent(_Record, frozen=True, tag=3):
    path: str
    fingerprint: bytes
    name: str
    arguments: str
    call_id: str
    contract: Contract
    idempotency_key: str
    environment: str = ""
    """The episode that the call acts in, by the path of its opening; "" for none."""


class ToolResult(_Record, frozen=True, tag=4):
    path: str
    content: str
    error: str = ""
    """Why the call was rejected: unknown tool, invalid arguments, refusal, interruption."""
    seconds: float = 0.0
    reward: float | None = None
    """The reward of an environment's tool; None if the tool earns nothing."""
    done: bool = False
    truncated: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether the model was told that nobody knows if the call took effect."""
        return self.error == INTERRUPTED_CALL


class EnvironmentStepped(_Record, frozen=True, tag=5):
    """One action and its answer. An episode's opening is one, too: its action is the seed."""

    path: str
    fingerprint: bytes
    action: str
    observation: str
    reward: float
    done: bool
    snapshot: bytes = b""
    """The digest of a blob, or nothing. Written by no present version: see `Snapshotted`."""
    environment: str = ""
    """The episode that it belongs to, by the path of its opening."""
    truncated: bool = False
    """The environment's own limit ended the episode."""
    error: str = ""
    """Why the action was rejected; it then had no effect."""
    info: bytes = b""
    """msgpack, or nothing"""
    seconds: float = 0.0

    @property
    def is_opening(self) -> bool:
        return self.path == self.environment


class ValueRecorded(_Record, frozen=True, tag=6):
    path: str
    fingerprint: bytes
    name: str
    value: bytes
    """msgpack"""


class Forked(_Record, frozen=True, tag=7):
    """From here on, the steps at and after `path` in its scope are history, not state."""

    path: str
    reason: str
    difference: str
    at: float


class AttemptFailed(_Record, frozen=True, tag=8):
    failure: Failure
    at: float


class Finished(_Record, frozen=True, tag=9):
    status: Status
    reason: str
    reward: float | None
    """The reward that the rollout returned, if any."""
    at: float
    unseen: tuple[str, ...] = ()
    """Generations that are no part of it: durable after the rollout had given up on them, or the
    answers to an agent's probes."""
    turns_used: int | None = None
    """The number of turns that the rollout reported, if any."""
    added: tuple[str | Message, ...] = ()
    """The main conversation after its last reply, as in `Generated.added`. Empty where tools and
    environments said all of that: it is recorded with them."""


class Scored(_Record, frozen=True, tag=10):
    scorer: str
    reward: float | None
    """None: the scorer declares that there is no valid score."""
    metrics: dict[str, float]
    reasons: dict[str, str]
    at: float
    details: dict[str, object] = {}
    """All that an evaluation's result says, under the names of its fields (`score`,
    `is_score_valid`, `reason`, `metrics`, …); empty where the scorer gave no more than above."""


class ScoringFailed(_Record, frozen=True, tag=11):
    failure: Failure
    at: float
    final: bool


class Reopened(_Record, frozen=True, tag=12):
    """A failed trajectory gets new budgets, by the user's wish."""

    reason: str
    at: float


class Refilled(_Record, frozen=True, tag=13):
    """The trajectory begins a new life: nothing of the old one is replayed or reused."""

    life: int
    reason: str
    at: float


class Drafted(_Record, frozen=True, tag=14):
    """Tokens of a generation that is not finished, from its token `start` on.

    Should it be interrupted, it goes on from here. The spans count from its first token. Without
    ids, it takes back what was drafted from `start` on: its engine turned out to have lied.
    """

    path: str
    fingerprint: bytes
    start: int
    ids: bytes
    logprobs: bytes
    versions: tuple[VersionSpan, ...]
    model: str = ""
    """Who sampled them: another model does not go on with them."""
    call: bytes = b""
    """Of a black-box agent that has received them already: the key of its call (`Called.key`)."""
    occurrence: int = 0
    """Of that call, as `Called` has it."""
    created: int = 0
    """Of its answer, which is begun."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """Of all its tokens so far, as `Generated` has it."""


class Snapshotted(_Record, frozen=True, tag=15):
    """The state of an environment after its first `applied` actions, as a blob that it can
    restore."""

    environment: str
    applied: int
    snapshot: bytes
    """The digest of the blob."""


class CloseFailed(_Record, frozen=True, tag=16):
    """An environment could not be closed. The results in it stand."""

    environment: str
    failure: Failure
    at: float


class Entered(_Record, frozen=True, tag=18):
    """The environment is about to repeat a step that a dead process had already reached. Durable
    before the call, so that a call which kills the process every time is noticed."""

    path: str
    """The step; on the way back, the opening."""
    left: bool = False
    """The way back is over."""


class Called(_Record, frozen=True, tag=17):
    """One call of a black-box agent: which generations answered it, and in which form. Written
    again, with `heard`, when the agent is known to have the answer."""

    path: str
    """The first of its generations."""
    key: bytes
    """The digest of the request in its canonical form."""
    occurrence: int
    """Which of several requests with this key it is."""
    choices: tuple[str, ...]
    """Its generations."""
    beginning: bytes
    """The digest of the conversation's first message."""
    conversation: bytes
    """The digest of the conversation that was sent."""
    tools: bytes
    """The digest of a blob with the schemas of the tools, JSON; or nothing."""
    wire: str
    answer: str
    """The answer's id."""
    created: int
    model: str
    """As the agent named it."""
    ignored: tuple[str, ...] = ()
    """What of the request was left out by the user's wish: parameters, and `tool:TYPE`."""
    instructed: bool = False
    """Whether its first message is a response's `instructions`: a later call that goes on from it
    does not take that over."""
    heard: int = 0
    """The last attempt whose agent is known to have received the answer; 0 if unknown."""


class CallRefused(_Record, frozen=True, tag=20):
    """One call of a black-box agent that was refused, or could not be answered.

    Durable before the agent gets the rejection. Written again, with `answer`, before the agent gets
    the answer of a call that asks the same again.
    """

    key: bytes
    """The digest of what was asked and why not: refused again in its attempt, it is the same."""
    attempt: int
    wire: str
    said: bytes
    """The digest of its conversation, as far as it could be read."""
    status: int
    code: str
    message: str
    """The response to the agent."""
    at: float
    answer: str = ""
    """The id of the answer that the agent got when it asked again; "" while it did not."""


class Reused(_Record, frozen=True, tag=21):
    """All before it was recorded in another run, which sampled the same before. Nothing of it was
    used, or paid for, in this run."""

    run: str
    """As it was called then."""
    at: float


Record = (
    AttemptStarted
    | Generated
    | ToolIntent
    | ToolResult
    | EnvironmentStepped
    | ValueRecorded
    | Forked
    | AttemptFailed
    | Finished
    | Scored
    | ScoringFailed
    | Reopened
    | Refilled
    | Drafted
    | Snapshotted
    | CloseFailed
    | Called
    | Entered
    | CallRefused
    | Reused
)
Step = Generated | ToolIntent | EnvironmentStepped | ValueRecorded


def scope_of(path: str) -> tuple[str, int]:
    """The scope that a step lies in and its ordinal there: `"3.1.4"` → `("3.1.", 4)`."""
    scope, dot, ordinal = path.rpartition(".")
    return scope + dot, int(ordinal)


def ancestors(path: str) -> list[str]:
    """The places that a step lies below, outermost first: `"3.1.4.0.2"` → `["3", "3.1.4"]`."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts), 2)]


@functools.lru_cache(maxsize=8192)
def path_order(path: str) -> tuple[int, ...]:
    """Concurrent steps commit in any order; readers sort them by their paths."""
    return tuple(map(int, path.split(".")))


def is_cut_by(path: str, cut: str) -> bool:
    """Whether a fork at `cut` makes the step at `path` history."""
    scope, first = scope_of(cut)
    return path.startswith(scope) and int(path[len(scope) :].partition(".")[0]) >= first
