"""Ordered weight versions. Each name stands for the same bytes for ever."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.records.step import VersionSource, VersionSpan


class WeightVersion(Struct, frozen=True):
    """The weights of one step, as a run's journal stores them."""

    ordinal: int
    """Counted from 1, in the order in which the versions were published."""
    name: str
    """The name that version spans use."""
    step: int
    """The optimizer step that created the weights."""
    digest: str
    """The digest of the weights."""


def newest_of(versions: Iterable[WeightVersion]) -> WeightVersion | None:
    """Returns the version of the last step. If that step has several versions, returns the latest
    of them. The version that was published last may be of an earlier step, because steps may be
    trained again."""
    return max(versions, key=lambda version: (version.step, version.ordinal), default=None)


def staleness(
    spans: Iterable[VersionSpan], versions: Sequence[WeightVersion], *, now: int
) -> int | None:
    """Returns how many steps the oldest of `spans` is behind the weights of step `now`. Returns
    None if a span's version is unknown or is not one of the run's."""
    steps = {version.name: version.step for version in versions}
    oldest = now
    for span in spans:
        step = steps.get(span.version)
        if step is None or span.source is VersionSource.UNKNOWN:
            return None
        oldest = min(oldest, step)
    return now - oldest
