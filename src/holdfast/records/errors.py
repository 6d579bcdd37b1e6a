"""The one error model.

Every error that Holdfast raises descends from `HoldfastError` and says of itself which boundary it
belongs to (`cause`), whether trying again can help (`retryable`), and with which exit code it ends
a command (`exit_code`). Nothing else in the code base decides these. `failure.classify` reads the
first two, once, where a failure is caught.
"""

from enum import StrEnum
from typing import ClassVar

from holdfast.records.exit_codes import Exit


class Cause(StrEnum):
    """Who is responsible for a failure. It decides what happens to the gradient."""

    POLICY = "policy"
    """The model did it. It is an outcome: kept, scored, trained."""
    ENVIRONMENT = "environment"
    """A tool or environment broke (it did not merely say no)."""
    INFRASTRUCTURE = "infrastructure"
    """Engines, networks, disks. Never a reward."""
    CODE = "code"
    """A bug in a rollout or a scorer."""


class HoldfastError(Exception):
    """The root of every error of ours."""

    cause: ClassVar[Cause] = Cause.CODE
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[Exit] = Exit.STOPPED
    arose_here: ClassVar[bool] = True
    """Whether the lines of Holdfast that it passed through explain anything."""


class UsageError(HoldfastError):
    """The caller asked for something impossible; the message says what to do instead."""

    exit_code = Exit.USAGE
    arose_here = False


IMAGES = "images"


class Unsupported(UsageError):
    """The policy cannot sample as it was asked to. Raised before anything is recorded.

    `what` is the field of `Sampling` (or `prompt`, or `IMAGES`) that asks for it; `why`, the
    message to an agent that asked for it: it holds no path and no address.
    """

    def __init__(self, what: str, message: str, *, why: str = ""):
        super().__init__(message)
        self.what = what
        self.why = why or message


# --- the journal -------------------------------------------------------------------------------


class JournalError(HoldfastError):
    """The journal cannot do what it was asked. Nothing that was acknowledged is lost."""

    cause = Cause.INFRASTRUCTURE
    exit_code = Exit.USAGE


class NotAJournal(JournalError):
    """The file is something else. It was not touched."""


class JournalNewer(JournalError):
    """A newer Holdfast wrote this journal. It was not touched."""


class JournalUnreachable(JournalError):
    """The journal's server did not answer while a command waited. The same command continues
    later."""

    exit_code = Exit.STOPPED


class JournalFull(JournalError):
    """The disk is full: the run stops before it does work that it cannot keep."""

    exit_code = Exit.STOPPED


class JournalCorrupt(JournalError):
    """A record fails its checksum or does not decode."""

    exit_code = Exit.CORRUPT


class JournalDamaged(JournalError):
    """More is damaged than a record, which could be cut: pages of a file, or whole commits."""

    exit_code = Exit.CORRUPT


class LostCommits(JournalDamaged):
    """The journal lacks commits that it had acknowledged. All commands stop until someone restores
    the files or accepts the loss: the lost records may be of calls that must not happen twice."""


class RunHeld(JournalError):
    """A live worker holds the run."""

    exit_code = Exit.HELD


class ConsumerHeld(RunHeld):
    """A live process consumes the run under this name."""


class LeaseLost(JournalError):
    """Another process has taken the lease over; what this one writes is refused (I7)."""

    exit_code = Exit.STOPPED


class DeliveryTimeout(JournalError):
    """No batch came while a consumer waited. Nothing was taken; the consumer may continue."""

    retryable = True


# --- policies ----------------------------------------------------------------------------------


class PolicyError(HoldfastError):
    """An inference engine did not give a usable answer."""

    cause = Cause.INFRASTRUCTURE
    retryable = True
    arose_here = False


class EngineUnavailable(PolicyError):
    """Connection lost, 5xx, 429, a timeout: the engine may be back later."""

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
        """Whether the engine itself answered; if not, its endpoint may be down."""
        self.is_busy = is_busy
        """Whether it only wants to be asked less often (429)."""


class BadAnswer(PolicyError):
    """The engine answered, but not with what was asked: missing ids, NaN logprobs, wrong model."""


class WeightsDoubted(BadAnswer):
    """Nobody knows that the weights which sampled these tokens were the right ones. They are
    dropped, and sampled again."""


class PolicyRefused(PolicyError):
    """401, 403 or 404: the same request will never work. It stops the run, not a trajectory."""

    retryable = False
    exit_code = Exit.USAGE


class EndpointDown(PolicyError):
    """The endpoint stayed unreachable for longer than the run waits."""

    retryable = False


class RowEndpointDown(PolicyError):
    """An endpoint that only some rows name stayed unreachable: it costs those rows, not the run."""

    retryable = False


class BadRequest(HoldfastError):
    """The engine says that the request itself is wrong: the rollout asked for it."""

    cause = Cause.CODE

    def __init__(self, message: str, *, answer: str = ""):
        super().__init__(message)
        self.reason = answer or message
        """The same without the engine's address."""


class RecordTooLarge(HoldfastError):
    """One record of a trajectory is larger than a journal takes. It fails its own trajectory."""

    arose_here = False


class NotTrainable(HoldfastError):
    """The data is good for evaluation, but gives no sample: it has no token ids, or logprobs of
    another distribution than the sampled one."""

    exit_code = Exit.USAGE


# --- rollouts ----------------------------------------------------------------------------------


class Truncated(HoldfastError):
    """The trajectory reached a limit. An outcome, not an accident: kept and scored."""

    cause = Cause.POLICY

    def __init__(self, reason: str, detail: str = "", *, returned: object = None):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.returned = returned
        """What the rollout would return: a reward, or (turns used, reward)."""


class ContextOverflow(Truncated):
    """The prompt no longer fits the model."""

    def __init__(self, detail: str = ""):
        super().__init__("context_overflow", detail)


class EnvironmentBroken(HoldfastError):
    """A tool or environment failed to work (it did not merely say no)."""

    cause = Cause.ENVIRONMENT
    retryable = True


class ThreadsHang(HoldfastError):
    """So many calls of user code hang in their threads that no more are made. It stops the run:
    who has not been called yet did nothing wrong, and another process has threads again."""

    cause = Cause.ENVIRONMENT
    arose_here = False


class ToolBug(HoldfastError):
    """A tool raised what only a mistake in its code raises."""

    retryable = True
    arose_here = False


class InterruptedCall(HoldfastError):
    """The process died in the middle of a call that is not made twice. An accident has shaped the
    trajectory: it is made anew where its group has a refill left, else it has failed."""

    cause = Cause.INFRASTRUCTURE
    arose_here = False

    def __init__(self, tool: str):
        super().__init__(
            f"the process died during a call of tool {tool}, which is at_most_once: nobody knows "
            "whether the call took effect; --retry-failed makes it again"
        )


class Rewound(HoldfastError):
    """The environment of an earlier attempt is gone, or came back different: the steps that depend
    on it are history now, and the rollout begins again before them."""

    cause = Cause.ENVIRONMENT
    retryable = True


class ToolSaysNo(HoldfastError):
    """Raised by a tool to refuse a call: the model is shown the message and goes on."""

    cause = Cause.POLICY


class Diverged(HoldfastError):
    """On replay, the rollout asked for something other than what is recorded (I9)."""


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
    """The processes of a scorer died again and again over the same trajectory."""

    cause = Cause.ENVIRONMENT
    retryable = True
    arose_here = False


class ScorerUnloadable(HoldfastError):
    """A scorer's process cannot load the scorer, or loads another one. The run stops; no trajectory
    fails, and scoring can happen later."""

    cause = Cause.INFRASTRUCTURE
    arose_here = False


class ScoringStopped(HoldfastError):
    """A scorer asked to stop everything, as `pytest.skip()` does, with the error that it `raised`.
    The run stops; no trajectory fails, and scoring can happen later."""

    cause = Cause.INFRASTRUCTURE
    arose_here = False

    def __init__(self, raised: BaseException):
        super().__init__(f"{type(raised).__name__}: {raised}")
        self.raised = raised


class RunStopped(HoldfastError):
    """The run was asked to stop; the trajectory goes on in a later one as if nothing happened."""

    cause = Cause.INFRASTRUCTURE
