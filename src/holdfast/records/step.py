"""The records of a trajectory's log, which form a closed union.

Each record is one row of the journal, encoded as an array. The field order is the format: append
new fields at the end, with defaults, and never reorder fields. Each kind of record has a number
that is never used again for another kind.

A step is named by its *path*: the ordinals of the scopes that contain it, joined by dots. The root
scope counts 0, 1, 2, …. Parallel branches opened at step 3 count 3.0.0, 3.0.1, … and 3.1.0, ….
Steps that the code of a tool or a value at step 3 awaits count 3.0.0, 3.0.1, ….
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
    """Says what happens to a call if the process died during the call. Nobody knows then whether
    the call took effect. A call that ended, even with an error or at its timeout, is repeated under
    any contract."""

    IDEMPOTENT = "idempotent"
    """The call runs again with the same idempotency key."""
    AT_MOST_ONCE = "at_most_once"
    """The call never runs again in this life. The model gets the result that the call was
    interrupted."""
    RESTART = "restart"
    """The trajectory starts again, because the state that the call changed is lost."""


INTERRUPTED_CALL = "interrupted"
"""The error of a tool call whose outcome is unknown and which is not repeated."""


class VersionSource(IntEnum):
    """The source of the claim that a policy version sampled a span of tokens."""

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
    """The base class of all records. It has no fields, so that each record lists its own fields in
    order."""


TOOL_CALLS = "tool_calls"
STOPPED = frozenset({"stop", TOOL_CALLS})
"""The finish reasons of a reply that the model itself ended."""
ADDED = "added:"
"""The prefix of a reference to a message that another generation added: `added:PATH:INDEX`."""


class AttemptStarted(_Record, frozen=True, tag=1):
    attempt: int
    worker: str
    at: float


class Generated(_Record, frozen=True, tag=2):
    """One sampled completion.

    The prompt consists of the first `keep` tokens of the stream of `base` (the prompt and
    completion of that step) and of `delta`. The size of a log therefore grows with the number of
    tokens, not with its square.
    """

    path: str
    fingerprint: bytes
    base: str
    keep: int
    delta: bytes
    ids: bytes
    logprobs: bytes
    engine_finish_reason: str
    """The engine's own finish reason. Readers use `finish_reason`."""
    versions: tuple[VersionSpan, ...]
    message: Message
    added: tuple[Message | str, ...]
    """The messages that are new since `base`. A string refers to a message that is recorded
    elsewhere (see `history`)."""
    model: str
    sampling: Sampling
    tries: int = 1
    seconds: float = 0.0
    prefix_break: str = ""
    """The reason why the prompt does not begin with the stream of `base`; "" if it does."""
    drafted: int = 0
    """The number of first tokens that are in `Drafted` records; `ids` and `logprobs` have the rest.
    The fold joins them (see `history`), so readers see only whole generations."""
    seams: tuple[int, ...] = ()
    """The token positions at which the generation continued after an interruption."""
    trainable: bool = True
    """False if the engine returns no tokens, so that only the message is known."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """What the engine's logprobs include, independent of the sampling."""
    usage: Usage | None = None
    """The usage of all tries that sent something, including tries before a seam; None if no engine
    reports it."""
    tools: str | None = None
    """The schemas of the shown tools, as JSON. None means the tools of `base`, or without a `base`
    the tools of the task."""
    experts: RoutedExperts | None = None
    """The routed experts of the tokens that no earlier generation has; None if the experts were not
    requested or not returned."""
    reasoning_tags: tuple[str, ...] = ()
    """The tags around the reasoning in the content that a chat engine sent; () if the content had
    no reasoning."""
    dialect: str = ""
    """The HTTP interface of the engine that ended the generation, as `--dialect` names it."""

    @property
    def finish_reason(self) -> str:
        """Returns the finish reason in the words of chat APIs. A reply that the model ended with
        tool calls has `tool_calls`, even if an engine that only returns tokens says `stop`."""
        called = self.message.tool_calls and self.engine_finish_reason in STOPPED
        return TOOL_CALLS if called else self.engine_finish_reason

    @property
    def raw_text(self) -> str:
        """Returns the text of the reply, including reasoning that a chat engine sent as part of the
        text."""
        return put_reasoning_back(self.message, self.reasoning_tags).text

    @property
    def billed(self) -> Usage:
        """Returns the usage of the generation, including interrupted tries."""
        return self.counted if self.usage is None else self.usage

    @property
    def counted(self) -> Usage:
        """Returns the usage as if the generation had never been interrupted, so that a disturbed
        and an undisturbed run report the same. Counts no cached tokens."""
        if self.ids or self.delta:
            sampled = self.drafted + len(self.ids) // TOKEN_BYTES
            return Usage(self.keep + len(self.delta) // TOKEN_BYTES, sampled)
        usage = self.usage or NOTHING
        return Usage(usage.prompt_tokens, usage.completion_tokens, 0, usage.reasoning_tokens)

    @property
    def sources(self) -> tuple[str, ...]:
        """Returns the paths of the generations to which this generation refers."""
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
    """The episode in which the call acts, by the path of its opening; "" for no episode."""


class ToolResult(_Record, frozen=True, tag=4):
    path: str
    content: str
    error: str = ""
    """The reason why the call was rejected: unknown tool, invalid arguments, refusal or
    interruption."""
    seconds: float = 0.0
    reward: float | None = None
    """The reward of an environment's tool; None if the tool gives no reward."""
    done: bool = False
    truncated: bool = False

    @property
    def interrupted(self) -> bool:
        """Returns whether the model was told that the effect of the call is unknown."""
        return self.error == INTERRUPTED_CALL


class EnvironmentStepped(_Record, frozen=True, tag=5):
    """One action and its answer. The opening of an episode is also recorded as an action; its
    action is the seed."""

    path: str
    fingerprint: bytes
    action: str
    observation: str
    reward: float
    done: bool
    snapshot: bytes = b""
    """The digest of a blob, or b"". Present versions write `Snapshotted` records instead."""
    environment: str = ""
    """The episode of the action, by the path of its opening."""
    truncated: bool = False
    """Whether the environment's own limit ended the episode."""
    error: str = ""
    """The reason why the action was rejected. A rejected action has no effect."""
    info: bytes = b""
    """The info as msgpack, or b""."""
    seconds: float = 0.0

    @property
    def is_opening(self) -> bool:
        return self.path == self.environment


class ValueRecorded(_Record, frozen=True, tag=6):
    path: str
    fingerprint: bytes
    name: str
    value: bytes
    """The value, encoded as msgpack."""


class Forked(_Record, frozen=True, tag=7):
    """The steps at and after `path` in its scope become history. They are no longer part of the
    trajectory's present state."""

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
    """The reward that the rollout returned; None if it returned none."""
    at: float
    unseen: tuple[str, ...] = ()
    """Generations that are not part of the rollout. They became durable after the rollout had given
    up on them, or they answer an agent's probes."""
    turns_used: int | None = None
    """The number of turns that the rollout reported; None if it reported none."""
    added: tuple[str | Message, ...] = ()
    """The messages of the main conversation after its last reply, as in `Generated.added`. Empty if
    tools and environments wrote all these messages, because their records contain the messages."""


class Scored(_Record, frozen=True, tag=10):
    scorer: str
    reward: float | None
    """The score; None if the scorer declares that there is no valid score."""
    metrics: dict[str, float]
    reasons: dict[str, str]
    at: float
    details: dict[str, object] = {}
    """All fields of an evaluation's result by their names (`score`, `is_score_valid`, `reason`,
    `metrics`, …). Empty if the scorer returned only the fields above."""

    @property
    def reasons_of_reward(self) -> list[str]:
        """Returns the reasons that belong to no metric, each with its name unless that is just
        "reason"."""
        rest = {name: text for name, text in self.reasons.items() if name not in self.metrics}
        return [text if name == "reason" else f"{name}: {text}" for name, text in rest.items()]


class ScoringFailed(_Record, frozen=True, tag=11):
    failure: Failure
    at: float
    final: bool


class Reopened(_Record, frozen=True, tag=12):
    """A failed trajectory gets new budgets because the user asked for it."""

    reason: str
    at: float


class Refilled(_Record, frozen=True, tag=13):
    """The trajectory begins a new life. Nothing of the old life is replayed or reused."""

    life: int
    reason: str
    at: float


class Drafted(_Record, frozen=True, tag=14):
    """Tokens of an unfinished generation, beginning with token number `start`. After an
    interruption, the generation continues after these tokens. Spans count from the first token of
    the generation. A record without ids deletes the drafted tokens from `start` on, because the
    engine had reported wrong tokens."""

    path: str
    fingerprint: bytes
    start: int
    ids: bytes
    logprobs: bytes
    versions: tuple[VersionSpan, ...]
    model: str = ""
    """The model that sampled the tokens. Another model does not continue them."""
    call: bytes = b""
    """The key of the agent's call (`Called.key`), if a black-box agent has already received the
    tokens."""
    occurrence: int = 0
    """The occurrence of that call (`Called.occurrence`)."""
    created: int = 0
    """The creation time of the answer that has begun."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """The logprobs mode of all tokens so far, as in `Generated`."""


class Snapshotted(_Record, frozen=True, tag=15):
    """The state of an environment after its first `applied` actions, as a blob from which it can be
    restored."""

    environment: str
    applied: int
    snapshot: bytes
    """The digest of the blob."""


class CloseFailed(_Record, frozen=True, tag=16):
    """An environment could not be closed. The results of the episode stay valid."""

    environment: str
    failure: Failure
    at: float


class Entered(_Record, frozen=True, tag=18):
    """The environment is about to be called for a step, or brought back. The record is written if
    an earlier process had already reached the step, and before every call in a world. It is durable
    before the call, so that a call that kills the process each time is noticed."""

    path: str
    """The path of the step, or of the environment's opening while the environment is being brought
    back."""
    left: bool = False
    """True in a second record of the same path, which says that the environment was brought
    back."""


class Called(_Record, frozen=True, tag=17):
    """One call of a black-box agent, with the generations that answered it and the form of the
    answer. The record is written again, with `received`, when the agent is known to have the
    answer."""

    path: str
    """The path of the call's first generation."""
    key: bytes
    """The digest of the request in its canonical form."""
    occurrence: int
    """The number of this request among the requests with the same key."""
    choices: tuple[str, ...]
    """The paths of the call's generations."""
    beginning: bytes
    """The digest of the conversation's first message."""
    conversation: bytes
    """The digest of the conversation that was sent."""
    tools: bytes
    """The digest of a blob with the schemas of the tools as JSON, or b""."""
    wire: str
    answer: str
    """The id of the answer."""
    created: int
    model: str
    """The model's name in the agent's request."""
    ignored: tuple[str, ...] = ()
    """The parts of the request that were left out because the user allowed it: names of parameters,
    and `tool:TYPE` for tools."""
    instructed: bool = False
    """Whether the first message is a response's `instructions`. A later call that continues this
    response does not inherit them."""
    received: int = 0
    """The last attempt whose agent is known to have received the answer; 0 if unknown."""


class CallRefused(_Record, frozen=True, tag=20):
    """One call of a black-box agent that was refused or could not be answered.

    The record is durable before the agent gets the rejection. If the agent asks the same again and
    gets an answer, the record is written again, with `answer`, before the agent gets the answer.
    """

    key: bytes
    """The digest of the request and of the reason for the refusal. The same refusal in one attempt
    has the same key."""
    attempt: int
    wire: str
    conversation: bytes
    """The digest of the request's conversation, as far as the conversation could be read."""
    status: int
    code: str
    message: str
    """The message of the response to the agent."""
    at: float
    answer: str = ""
    """The id of the answer that the agent got when it asked again; "" before that."""


class Reused(_Record, frozen=True, tag=21):
    """Marks that another run recorded everything before this record. This run did not sample it and
    did not pay for it."""

    run: str
    """The other run's name at that time."""
    at: float
    fork: str = ""
    """The step at which this trajectory leaves the other one; "" if this trajectory has all records
    of the other one."""


class Edited(_Record, frozen=True, tag=22):
    """An edit of one turn, which gives the model other messages than the rollout or the agent
    passed."""

    turn: str
    """The path of the generation; for the call of an agent, its `call_turn`."""
    dropped: int
    """The number of last messages that are left out."""
    messages: tuple[Message, ...]
    """The messages that take their place."""

    def apply(self, messages: list[Message]) -> None:
        """Replaces the last messages of the turn's conversation in place."""
        messages[len(messages) - self.dropped :] = self.messages


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
    | Edited
)
Step = Generated | ToolIntent | EnvironmentStepped | ValueRecorded


def call_turn(key: bytes, occurrence: int) -> str:
    """Returns a text that identifies an agent's call and does not depend on the call's path."""
    return f"{key.hex()}.{occurrence}"


def scope_of(path: str) -> tuple[str, int]:
    """Returns the scope of a step and the step's ordinal in the scope: `"3.1.4"` → `("3.1.",
    4)`."""
    scope, dot, ordinal = path.rpartition(".")
    return scope + dot, int(ordinal)


def ancestors(path: str) -> list[str]:
    """Returns the steps that contain a step, outermost first: `"3.1.4.0.2"` → `["3", "3.1.4"]`."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts), 2)]


@functools.lru_cache(maxsize=8192)
def path_order(path: str) -> tuple[int, ...]:
    """Returns a sort key for paths. Concurrent steps commit in any order, so readers sort them by
    path."""
    return tuple(map(int, path.split(".")))


def is_cut_by(path: str, cut: str) -> bool:
    """Returns whether a fork at `cut` makes the step at `path` history."""
    scope, first = scope_of(cut)
    return path.startswith(scope) and int(path[len(scope) :].partition(".")[0]) >= first
