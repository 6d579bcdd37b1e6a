"""Counts of the tokens that a generation read and wrote, as reported by its engine.

A sum of usages says what was spent. It counts everything that was sampled, even outside the data.
If an engine reports no counts, the tokens that it sent are counted.
"""

from collections.abc import Mapping

from msgspec import Struct

MAX_TOKENS = 2**53
"""The limit of a plausible count. A larger count from an API is treated as an error."""


class Usage(Struct, frozen=True, array_like=True, gc=False):
    """The number of tokens of one generation, or of several."""

    prompt_tokens: int = 0
    """The number of tokens that were sent to the engine. A repeated prompt counts each time."""
    completion_tokens: int = 0
    """The number of sampled tokens, including reasoning."""
    cached_tokens: int = 0
    """The number of prompt tokens that the engine reports as cached."""
    reasoning_tokens: int = 0
    """The number of completion tokens that the engine reports as reasoning."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def less(self, other: "Usage") -> "Usage":
        """Returns this usage minus `other`. Counts that would be negative are 0."""
        names = self.__struct_fields__
        return Usage(*(max(0, getattr(self, name) - getattr(other, name)) for name in names))

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def as_fields(self) -> dict[str, int]:
        """Returns the counts by their names, for files."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def share(self, number: int, *, of: int) -> "Usage":
        """Divides this usage into `of` almost equal parts of whole tokens, and returns the part
        with the number `number`, counted from 0. The sum of all parts is this usage."""
        parts = (getattr(self, name) for name in self.__struct_fields__)
        return Usage(*(part // of + (number < part % of) for part in parts))


NOTHING = Usage()
UsageByModel = dict[str, Usage]


def add_usages(left: Mapping[str, Usage], right: Mapping[str, Usage]) -> UsageByModel:
    """Returns the sum for each model."""
    summed = dict(left)
    for model, usage in right.items():
        summed[model] = summed.get(model, NOTHING) + usage
    return summed


JUDGE = "judge"
"""The key under which a score's details hold the judge: its `model` and its `usage`."""


USED = "judge_usage"
"""The key under which a score's details hold the usage of further judges, by model."""
MADE_JUDGE = "judge_made"
"""The key under which a score's details hold the identity of the first judge that was asked, if the
scoring function made a judge itself."""
UNREAD = "unread"
"""The key of a judge's details that is set if the judge's answers could not be read."""
UNREAD_JUDGE = "judge_unread"
"""The key of a score's details that is set if the scorer returned None after it asked a judge whose
answer could not be read."""


def is_unread(details: Mapping[str, object]) -> bool:
    """Returns whether a score with these details is missing because a judge's answer could not be
    read."""
    judge = details.get(JUDGE)
    is_noted = judge.get(UNREAD) if isinstance(judge, Mapping) else False
    return bool(is_noted or details.get(UNREAD_JUDGE))


def judge_usage(details: Mapping[str, object]) -> UsageByModel:
    """Returns the usage of judges for a score, by model; empty if no judge reports any."""
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
    """Returns the sum over all models."""
    return sum(used.values(), NOTHING)


def count_of(value: object) -> int | None:
    """Returns a token count from an API as an integer; None if the value is not a plausible
    count."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < MAX_TOKENS else None
