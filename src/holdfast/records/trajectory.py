"""A trajectory is one policy's run at a task. Its identity never contains the attempt."""

from enum import IntEnum, StrEnum

from msgspec import Struct


class Status(IntEnum):
    """The status of a trajectory. The journal stores the numbers, so they never change."""

    PENDING = 0
    """The trajectory is planned and not begun, or it waits to continue."""
    RUNNING = 1
    """A worker has begun the trajectory."""
    COMPLETED = 2
    """The rollout returned."""
    TRUNCATED = 3
    """The trajectory reached a limit. It is an outcome: it is kept and scored."""
    FAILED = 4
    """Something other than the policy broke the trajectory for good. It never has a reward."""
    ABORTED = 5
    """A placeholder that keeps a group's shape. It is never trained on and never sent to an
    engine."""

    @property
    def is_outcome(self) -> bool:
        """Returns whether the trajectory may be scored and trained on."""
        return self in (Status.COMPLETED, Status.TRUNCATED)

    @property
    def is_over(self) -> bool:
        return self >= Status.COMPLETED


class Truncation(StrEnum):
    """The reasons of truncation that Holdfast itself uses. A rollout may use other reasons."""

    MAX_TOKENS = "max_tokens"
    CONTENT_FILTER = "content_filter"
    CONTEXT_OVERFLOW = "context_overflow"
    GENERATION_DEADLINE = "generation_deadline"
    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"  # noqa: S105
    TIME_BUDGET = "time_budget"
    ENVIRONMENT_LIMIT = "environment_limit"


class TrajectoryKey(Struct, frozen=True, order=True, gc=False):
    """The identity `run/task/sample`, which never changes across attempts, refills and machines."""

    run: str
    task: str
    sample: int

    def __str__(self) -> str:
        return f"{self.run}/{self.task}/{self.sample}"

    @property
    def group(self) -> str:
        return f"{self.run}/{self.task}"
