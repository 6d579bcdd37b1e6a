"""Weight versions: ordered, and each name stands for the same bytes for ever."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.records.step import VersionSource, VersionSpan


class WeightVersion(Struct, frozen=True):
    """The weights of one step, as a run's journal knows them."""

    ordinal: int
    """Counted from 1, in the order in which the versions were published."""
    name: str
    """The name that spans have."""
    step: int
    """The optimizer step that made them."""
    digest: str
    """Of the weights."""


def newest_of(versions: Iterable[WeightVersion]) -> WeightVersion | None:
    """The version of the last step, even if an older step was published later, because steps may be
    trained again. Of several versions of one step, the latest."""
    return max(versions, key=lambda version: (version.step, version.ordinal), default=None)


def staleness(
    spans: Iterable[VersionSpan], versions: Sequence[WeightVersion], *, now: int
) -> int | None:
    """How many steps the oldest of `spans` is behind the weights of step `now`. None if a span's
    version is unknown, or not the run's."""
    steps = {version.name: version.step for version in versions}
    oldest = now
    for span in spans:
        step = steps.get(span.version)
        if step is None or span.source is VersionSource.UNKNOWN:
            return None
        oldest = min(oldest, step)
    return now - oldest
