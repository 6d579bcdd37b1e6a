"""Usage: how many tokens a generation read and wrote, by the count of its engine.

A sum of usages says what was spent: whatever was sampled counts, whether or not it is part of the
data. Engines that say nothing are counted by the tokens that they sent.
"""

from collections.abc import Mapping

from msgspec import Struct

MAX_TOKENS = 2**53
"""A larger count from an API is taken for an error."""


class Usage(Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one generation, or the sum of several."""

    prompt_tokens: int = 0
    """Tokens sent to the engine, counted each time."""
    completion_tokens: int = 0
    """Sampled tokens, including reasoning."""
    cached_tokens: int = 0
    """Prompt tokens that the engine reports as cached."""
    reasoning_tokens: int = 0
    """Completion tokens that the engine reports as reasoning."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def less(self, other: "Usage") -> "Usage":
        """The difference to the other usage, at least 0."""
        names = self.__struct_fields__
        return Usage(*(max(0, getattr(self, name) - getattr(other, name)) for name in names))

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def as_fields(self) -> dict[str, int]:
        """By name, for files."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def share(self, number: int, *, of: int) -> "Usage":
        """One of so many equal parts, whole tokens all of them: their sum is this."""
        parts = (getattr(self, name) for name in self.__struct_fields__)
        return Usage(*(part // of + (number < part % of) for part in parts))


NOTHING = Usage()
UsageByModel = dict[str, Usage]


def add_usages(left: Mapping[str, Usage], right: Mapping[str, Usage]) -> UsageByModel:
    """The sum, model by model."""
    summed = dict(left)
    for model, usage in right.items():
        summed[model] = summed.get(model, NOTHING) + usage
    return summed


JUDGE = "judge"
"""Among a score's details: who judged, as `model`, and what that used, as `usage`."""


USED = "judge_usage"
"""Among a score's details: what judges used beside that, by their models."""
UNREAD = "unread"
"""In a judge's details of a score: its answers could not be read."""
UNREAD_JUDGE = "judge_unread"
"""In a score's details: the function asked a judge, whose answer could not be read, and returned
None itself."""


def is_unread(details: Mapping[str, object]) -> bool:
    """Whether a score with these details is missing because a judge could not be read."""
    judge = details.get(JUDGE)
    is_noted = judge.get(UNREAD) if isinstance(judge, Mapping) else False
    return bool(is_noted or details.get(UNREAD_JUDGE))


def judge_usage(details: Mapping[str, object]) -> UsageByModel:
    """The tokens that judges used for a score; empty if no judge reports any."""
    judge, used = details.get(JUDGE), details.get(USED)
    usages = (
        [(str(judge.get("model", "")), judge.get("usage"))] if isinstance(judge, Mapping) else []
    )
    if isinstance(used, Mapping):
        usages += [(str(model), counts) for model, counts in used.items()]
    usage_by_model: UsageByModel = {}
    for model, counts in usages:
        if isinstance(counts, Mapping) and (usage := _usage_of(counts)) != NOTHING:
            usage_by_model = add_usages(usage_by_model, {model: usage})
    return usage_by_model


def _usage_of(counts: Mapping[str, object]) -> Usage:
    return Usage(*(count_of(counts.get(name)) or 0 for name in Usage.__struct_fields__))


def total_usage(used: Mapping[str, Usage]) -> Usage:
    """Of all models."""
    return sum(used.values(), NOTHING)


def count_of(value: object) -> int | None:
    """A count of tokens from an API; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < MAX_TOKENS else None
