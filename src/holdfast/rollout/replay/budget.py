"""Budgets: how much one trajectory may use, in turns, tokens and time.

The amount spent is the sum over the recorded steps. So a resumed rollout has spent exactly as much
as before, and the pause does not count. If a limit is reached, the cause is the policy, and the
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
    """The number of the policy's replies."""
    tokens: int | None = None
    """The number of tokens that the policy samples in all of its turns."""
    seconds: float | None = None
    """The time of its steps: generations, tools and environments. Outages do not count."""

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
    """How much one conversation may spend, and how much it has spent."""

    __slots__ = ("began", "limits", "spent")

    def __init__(self, limits: Limits | None = None, spent: Spent | None = None):
        self.limits = limits or Limits()
        self.spent = spent or Spent()
        self.began = structs.replace(self.spent)
        """The amount that was already spent when this budget began."""

    def begin(self, sampling: Sampling) -> Sampling:
        """Returns the sampling of the next turn, cut so that it ends with the budget. Raises
        `Truncated` if the budget is used up."""
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
        """Counts a turn. Raises `Truncated` if the reply was cut at the end of the budget."""
        self.take_inside([step])
        self.spent.seconds += step.seconds
        if (
            step.engine_finish_reason == "length"
            and step.sampling.max_tokens < requested.max_tokens
        ):
            raise Truncated(Truncation.TOKEN_BUDGET, f"{self.spent.tokens} tokens")

    def take_inside(self, steps: Sequence[Generated]) -> None:
        """Adds turns that were sampled inside another step, whose time counts already."""
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
        """Returns a copy for a branch, which spends separately."""
        return Budget(self.limits, structs.replace(self.spent))

    def after(self, other: "Budget") -> "Budget":
        """Returns a copy that counts what `other` has spent, too."""
        budget = self.copy()
        budget.join([other])
        return budget.copy()

    def join(self, branches: "Sequence[Budget]") -> None:
        """Adds the spending of branches that ran side by side. Turns and tokens add up. The time is
        that of the longest branch."""
        for branch in branches:
            self.spent.turns += branch.spent.turns - branch.began.turns
            self.spent.tokens += branch.spent.tokens - branch.began.tokens
        taken = [branch.spent.seconds - branch.began.seconds for branch in branches]
        self.spent.seconds += max(taken, default=0.0)
