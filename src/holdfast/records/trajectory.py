"""Trajectory: one policy's run at a task. Its identity never contains the attempt."""

from enum import IntEnum, StrEnum

from msgspec import Struct


class Status(IntEnum):
    """The status of a trajectory. The journal stores the numbers, so they never change."""

    PENDING = 0
    """Planned: nobody has worked on it, or it waits to continue."""
    RUNNING = 1
    """A worker has begun it."""
    COMPLETED = 2
    """The rollout returned."""
    TRUNCATED = 3
    """It reached a limit: an outcome, kept and scored."""
    FAILED = 4
    """Something other than the policy broke it for good. Never a reward."""
    ABORTED = 5
    """A placeholder that keeps a group's shape; never trained, never sent to an engine."""

    @property
    def is_outcome(self) -> bool:
        """True where the policy produced something that may be scored and trained."""
        return self in (Status.COMPLETED, Status.TRUNCATED)

    @property
    def is_over(self) -> bool:
        return self >= Status.COMPLETED


class Truncation(StrEnum):
    """Reasons that Holdfast itself gives; a rollout may give others."""

    MAX_TOKENS = "max_tokens"
    CONTENT_FILTER = "content_filter"
    CONTEXT_OVERFLOW = "context_overflow"
    GENERATION_DEADLINE = "generation_deadline"
    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"  # noqa: S105
    TIME_BUDGET = "time_budget"
    ENVIRONMENT_LIMIT = "environment_limit"


class TrajectoryKey(Struct, frozen=True, order=True, gc=False):
    """`run/task/sample`: stable for ever, across attempts, refills and machines."""

    run: str
    task: str
    sample: int

    def __str__(self) -> str:
        return f"{self.run}/{self.task}/{self.sample}"

    @property
    def group(self) -> str:
        return f"{self.run}/{self.task}"
