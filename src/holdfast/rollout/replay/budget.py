"""The limits of a trajectory in turns, tokens and time, and what it has spent.

The amount spent is the sum over the recorded steps. So a resumed rollout has spent exactly as much
as before, and the time between two attempts does not count. If the policy reaches a limit, the
trajectory is truncated with a reason.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from holdfast.records.errors import Truncated, UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.records.trajectory import Truncation


class Limits(Struct, frozen=True):
    """The limits of a trajectory. None means no limit."""

    turns: int | None = None
    """The most replies of the policy."""
    tokens: int | None = None
    """The most tokens that the policy samples in all of its turns together."""
    seconds: float | None = None
    """The most seconds that the steps take: generations, tools and environments. Outages do not
    count."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is None:
                continue
            # Not checked by type, because numpy's numbers count, too.
            number = "__float__" if name == "seconds" else "__index__"
            if isinstance(limit, bool) or not hasattr(limit, number):
                kind = "number" if name == "seconds" else "whole number"
                raise UsageError(f"a limit of {name} has to be a {kind}, not {limit!r:.200}")
            if not limit > 0:
                raise UsageError(f"a limit of {name} must be more than 0, not {limit!r}")


class Spent(Struct):
    """The amounts that the recorded steps have used."""

    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Budget:
    """The limits of one conversation, and what it has spent."""

    __slots__ = ("began", "limits", "spent")

    def __init__(self, limits: Limits | None = None, spent: Spent | None = None):
        self.limits = limits or Limits()
        self.spent = spent or Spent()
        self.began = structs.replace(self.spent)
        """The amount that was already spent when this budget began."""

    def begin(self, sampling: Sampling) -> Sampling:
        """Returns the sampling of the next turn, with `max_tokens` reduced to the tokens that are
        left. Raises `Truncated` if a limit is reached."""
        limits, spent = self.limits, self.spent
        if limits.turns is not None and spent.turns >= limits.turns:
            raise Truncated(Truncation.MAX_TURNS, f"{spent.turns} turns")
        if limits.tokens is not None and spent.tokens >= limits.tokens:
            raise Truncated(Truncation.TOKEN_BUDGET, f"{spent.tokens} tokens")
        if self.is_out_of_time:
            raise Truncated(Truncation.TIME_BUDGET, f"{spent.seconds:.1f} seconds")
        if limits.tokens is None or sampling.max_tokens <= limits.tokens - spent.tokens:
            return sampling
        return structs.replace(sampling, max_tokens=limits.tokens - spent.tokens)

    def end(self, step: Generated, *, requested: Sampling) -> None:
        """Counts a turn. Raises `Truncated` if the reply was cut because `begin` had reduced its
        `max_tokens`."""
        self.take_inside([step])
        self.spent.seconds += step.seconds
        if (
            step.engine_finish_reason == "length"
            and step.sampling.max_tokens < requested.max_tokens
        ):
            raise Truncated(Truncation.TOKEN_BUDGET, f"{self.spent.tokens} tokens")

    def take_inside(self, steps: Sequence[Generated]) -> None:
        """Counts turns that were sampled inside another step, but not their time, which is part of
        the time of that step."""
        for step in steps:
            self.spent.turns += 1
            self.spent.tokens += step.counted.completion_tokens

    @property
    def is_out_of_time(self) -> bool:
        return self.limits.seconds is not None and self.spent.seconds >= self.limits.seconds

    @property
    def seconds_left(self) -> float | None:
        if self.limits.seconds is None:
            return None
        return max(0.0, self.limits.seconds - self.spent.seconds)

    def copy(self) -> "Budget":
        """Returns a copy for a branch. What the branch spends does not change this budget."""
        return Budget(self.limits, structs.replace(self.spent))

    def after(self, other: "Budget") -> "Budget":
        """Returns a copy of this budget that also includes what `other` has spent."""
        budget = self.copy()
        budget.join([other])
        return budget.copy()

    def join(self, branches: "Sequence[Budget]") -> None:
        """Adds what concurrent branches have spent: the turns and tokens of all of them, and the
        time of the slowest branch."""
        for branch in branches:
            self.spent.turns += branch.spent.turns - branch.began.turns
            self.spent.tokens += branch.spent.tokens - branch.began.tokens
        taken = [branch.spent.seconds - branch.began.seconds for branch in branches]
        self.spent.seconds += max(taken, default=0.0)
