"""The error model of Holdfast.

Every error that Holdfast raises descends from `HoldfastError`. Its class says which side is
responsible (`cause`), whether another try can help (`retryable`), and with which exit code the
error ends a command (`exit_code`). No other code decides these three. Where a failure is caught,
`failure.classify` reads `cause` and `retryable` once.
"""

from enum import StrEnum
from typing import ClassVar

from holdfast.records.exit_codes import Exit


class Cause(StrEnum):
    """The side that is responsible for a failure. The cause decides whether and how the trajectory
    is trained on."""

    POLICY = "policy"
    """The model caused the failure. The failure is an outcome: it is kept, scored and trained
    on."""
    ENVIRONMENT = "environment"
    """A tool or an environment broke. A mere refusal is not such a failure."""
    INFRASTRUCTURE = "infrastructure"
    """Engines, networks or disks failed. Such a failure never has a reward."""
    CODE = "code"
    """A bug in a rollout or a scorer."""


class HoldfastError(Exception):
    """The base class of all errors of Holdfast."""

    cause: ClassVar[Cause] = Cause.CODE
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[Exit] = Exit.STOPPED
    arose_here: ClassVar[bool] = True
    """Whether frames of Holdfast in the traceback help to explain the error."""


class UsageError(HoldfastError):
    """The caller asked for something impossible; the message says what to do instead."""

    exit_code = Exit.USAGE
    arose_here = False


IMAGES = "images"


class Unsupported(UsageError):
    """The policy cannot sample as requested. The error is raised before anything is recorded.

    `what` is the field of `Sampling` that the policy cannot honor, or `prompt`, or `IMAGES`. `why`
    is the message for an agent that made the request, without paths and addresses.
    """

    def __init__(self, what: str, message: str, *, why: str = ""):
        super().__init__(message)
        self.what = what
        self.why = why or message


# --- the journal -------------------------------------------------------------------------------


class JournalError(HoldfastError):
    """The journal cannot do what the caller asked. Acknowledged records are not lost."""

    cause = Cause.INFRASTRUCTURE
    exit_code = Exit.USAGE


class NotAJournal(JournalError):
    """The file is not a journal. Holdfast did not change it."""


class JournalNewer(JournalError):
    """A newer Holdfast wrote this journal. This version did not change it."""


class JournalUnreachable(JournalError):
    """The journal's server did not answer while a command waited. The user can continue later with
    the same command."""

    exit_code = Exit.STOPPED


class JournalFull(JournalError):
    """The disk is full. The run stops before it does work that it cannot keep."""

    exit_code = Exit.STOPPED


class JournalCorrupt(JournalError):
    """A record fails its checksum or does not decode."""

    exit_code = Exit.CORRUPT


class JournalDamaged(JournalError):
    """Pages of a file are damaged or whole commits are lost, so that cutting single records repairs
    nothing."""

    exit_code = Exit.CORRUPT


class LostCommits(JournalDamaged):
    """The journal lacks commits that it had acknowledged. All commands stop until someone restores
    the files or accepts the loss, because the lost records may belong to calls that must not happen
    twice."""


class RunHeld(JournalError):
    """A live worker holds the run."""

    exit_code = Exit.HELD


class ConsumerHeld(RunHeld):
    """A live process consumes the run under this name."""


class LeaseLost(JournalError):
    """Another process has taken the lease over. The journal refuses the writes of this process
    (I7)."""

    exit_code = Exit.STOPPED


class DeliveryTimeout(JournalError):
    """No batch came while a consumer waited. The consumer has taken nothing and may continue."""

    retryable = True


# --- policies ----------------------------------------------------------------------------------


class PolicyError(HoldfastError):
    """An inference engine did not give a usable answer."""

    cause = Cause.INFRASTRUCTURE
    retryable = True
    arose_here = False


class EngineUnavailable(PolicyError):
    """The engine may be back later: the connection was lost, a request timed out, or the answer was
    5xx or 429."""

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        reached: bool = True,
        is_busy: bool = False,
    ):
        super().__init__(message)
        self.retry_after = retry_after
        self.reached = reached
        """Whether the engine itself answered. Otherwise its endpoint may be down."""
        self.is_busy = is_busy
        """Whether the engine only asks for fewer requests (429)."""


class BadAnswer(PolicyError):
    """The engine's answer is unusable: missing ids, NaN logprobs or the wrong model."""


class WeightsDoubted(BadAnswer):
    """It is unknown whether the right weights sampled these tokens. The tokens are dropped and
    sampled again."""


class PolicyRefused(PolicyError):
    """The engine answered 401, 403 or 404, so the same request will never work. The error stops the
    run, not only a trajectory."""

    retryable = False
    exit_code = Exit.USAGE


class EndpointDown(PolicyError):
    """The endpoint stayed unreachable for longer than the run waits."""

    retryable = False


class WaitTimedOut(EndpointDown):
    """An engine or another process of a training stayed away for longer than `--patience`. A
    restart of the process that waited for it would not help."""


class RowEndpointDown(PolicyError):
    """An endpoint that only some rows name stayed unreachable. Only these rows fail; the run goes
    on."""

    retryable = False


class BadRequest(HoldfastError):
    """The engine rejected the rollout's request as invalid."""

    cause = Cause.CODE

    def __init__(self, message: str, *, answer: str = ""):
        super().__init__(message)
        self.reason = answer or message
        """The engine's answer; the whole message if there is no answer."""


class RecordTooLarge(HoldfastError):
    """One record of a trajectory is larger than a journal accepts. Only this trajectory fails."""

    arose_here = False


class NotTrainable(HoldfastError):
    """The data is good for evaluation but gives no training sample. It has no token ids, or its
    logprobs belong to another distribution than the sampled one."""

    exit_code = Exit.USAGE


# --- rollouts ----------------------------------------------------------------------------------


class Truncated(HoldfastError):
    """The trajectory reached a limit. The trajectory is an outcome: it is kept and scored."""

    cause = Cause.POLICY

    def __init__(self, reason: str, detail: str = "", *, returned: object = None):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.returned = returned
        """The value that the rollout would return: a reward, or (turns used, reward)."""


class ContextOverflow(Truncated):
    """The prompt no longer fits the model."""

    def __init__(self, detail: str = ""):
        super().__init__("context_overflow", detail)


class EnvironmentBroken(HoldfastError):
    """A tool or an environment failed to work. A mere refusal is not such a failure."""

    cause = Cause.ENVIRONMENT
    retryable = True


class ThreadsHang(HoldfastError):
    """Too many calls of user code hang in their threads, so no more calls are made. The error stops
    the run, because the other trajectories did nothing wrong and another process has threads
    again."""

    cause = Cause.ENVIRONMENT
    arose_here = False


class ToolBug(HoldfastError):
    """A tool raised an error that only a mistake in its code raises."""

    retryable = True
    arose_here = False


class InterruptedCall(HoldfastError):
    """The process died in the middle of a call that must not be made twice. The interruption has
    shaped the trajectory, so the trajectory is rolled out anew. If its group has no refill left,
    the trajectory has failed."""

    cause = Cause.INFRASTRUCTURE
    arose_here = False

    def __init__(self, tool: str):
        super().__init__(
            f"the process died during a call of tool {tool}, which is at_most_once: nobody knows "
            "whether the call took effect; --retry-failed makes it again"
        )


class Rewound(HoldfastError):
    """The environment of an earlier attempt is gone or came back different. The steps that depend
    on the environment become history, and the rollout begins again before them."""

    cause = Cause.ENVIRONMENT
    retryable = True


class ToolSaysNo(HoldfastError):
    """An error that a tool raises to refuse a call. The model reads the message and goes on."""

    cause = Cause.POLICY


class Diverged(HoldfastError):
    """A replayed rollout asked for something other than the recorded step (I9)."""


class AttemptTimeout(HoldfastError):
    """The attempt did not finish within its deadline."""

    cause = Cause.INFRASTRUCTURE
    retryable = True


class ScorerTimeout(HoldfastError):
    """A scorer did not answer within its deadline."""

    cause = Cause.CODE
    retryable = True
    arose_here = False


class ScorerDied(HoldfastError):
    """The processes of a scorer died repeatedly over the same trajectory."""

    cause = Cause.ENVIRONMENT
    retryable = True
    arose_here = False


class ScorerUnloadable(HoldfastError):
    """A scorer's process cannot load the scorer, or loads another scorer. The run stops, no
    trajectory fails, and scoring can happen later."""

    cause = Cause.INFRASTRUCTURE
    arose_here = False


class ScoringStopped(HoldfastError):
    """A scorer asked to stop everything, for example with `pytest.skip()`. `raised` is the scorer's
    error. The run stops, no trajectory fails, and scoring can happen later."""

    cause = Cause.INFRASTRUCTURE
    arose_here = False

    def __init__(self, raised: BaseException):
        super().__init__(f"{type(raised).__name__}: {raised}")
        self.raised = raised


class RunStopped(HoldfastError):
    """The run was asked to stop. A later run continues the trajectory as if nothing had
    happened."""

    cause = Cause.INFRASTRUCTURE
