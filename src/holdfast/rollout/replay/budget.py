"""Budgets: how much one trajectory may use, in turns, tokens and time.

What was spent is added up from the recorded steps, so that a resumed rollout has spent exactly what
it had before, and the time in between costs nothing. A limit that is reached is the policy's doing:
a truncation with its reason.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from holdfast.records.errors import Truncated, UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.records.trajectory import Truncation


class Limits(Struct, frozen=True):
    """The limits of a trajectory; None: no limit."""

    turns: int | None = None
    """Replies of the policy."""
    tokens: int | None = None
    """Tokens that the policy samples, in all of its turns."""
    seconds: float | None = None
    """Time that its steps took: generations, tools and environments; outages do not count."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is None:
                continue
            # Not by type: numpy's numbers are numbers, too.
            number = "__float__" if name == "seconds" else "__index__"
            if isinstance(limit, bool) or not hasattr(limit, number):
                kind = "number" if name == "seconds" else "whole number"
                raise UsageError(f"a limit of {name} has to be a {kind}, not {limit!r:.200}")
            if not limit > 0:
                raise UsageError(f"a limit of {name} must be more than 0, not {limit!r}")


class Spent(Struct):
    """What was used of the limits, by the recorded steps."""

    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Budget:
    """What one conversation may spend, and has spent."""

    __slots__ = ("began", "limits", "spent")

    def __init__(self, limits: Limits | None = None, spent: Spent | None = None):
        self.limits = limits or Limits()
        self.spent = spent or Spent()
        self.began = structs.replace(self.spent)
        """What was spent before it began."""

    def begin(self, sampling: Sampling) -> Sampling:
        """The sampling of the next turn: it ends where the budget does. Raises `Truncated` when
        there is nothing left for it."""
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
        """Counts a turn. Raises `Truncated` for a reply that was cut where the budget ends."""
        self.take_inside([step])
        self.spent.seconds += step.seconds
        if (
            step.engine_finish_reason == "length"
            and step.sampling.max_tokens < requested.max_tokens
        ):
            raise Truncated(Truncation.TOKEN_BUDGET, f"{self.spent.tokens} tokens")

    def take_inside(self, steps: Sequence[Generated]) -> None:
        """Adds what was sampled inside another step, whose time counts already."""
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
        """For a branch, which spends on its own."""
        return Budget(self.limits, structs.replace(self.spent))

    def after(self, other: "Budget") -> "Budget":
        """The same for what begins when `other` is spent as well."""
        budget = self.copy()
        budget.join([other])
        return budget.copy()

    def join(self, branches: "Sequence[Budget]") -> None:
        """Branches ran side by side: they add up, but for the time, which passed for all."""
        for branch in branches:
            self.spent.turns += branch.spent.turns - branch.began.turns
            self.spent.tokens += branch.spent.tokens - branch.began.tokens
        taken = [branch.spent.seconds - branch.began.seconds for branch in branches]
        self.spent.seconds += max(taken, default=0.0)
