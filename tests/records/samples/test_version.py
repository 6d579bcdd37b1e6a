"""Staleness is a difference of steps, or unknown."""

from holdfast.records.samples.version import WeightVersion, newest_of, staleness
from holdfast.records.step import VersionSource, VersionSpan

VERSIONS = [WeightVersion(number, f"v{number}", number, f"d{number}") for number in (1, 2, 3)]


def test_the_oldest_span_counts() -> None:
    spans = [VersionSpan("v3", 0, 4), VersionSpan("v2", 4, 5), VersionSpan("v3", 5, 6)]
    assert staleness(spans, VERSIONS, now=3) == 1
    assert staleness(spans[:1], VERSIONS, now=3) == 0
    assert staleness([], VERSIONS, now=3) == 0


def test_what_is_not_known_has_no_age() -> None:
    assert staleness([VersionSpan("other", 0, 1)], VERSIONS, now=3) is None
    assert staleness([VersionSpan("v1", 0, 1, VersionSource.UNKNOWN)], VERSIONS, now=3) is None
    assert staleness([VersionSpan("v1", 0, 1, VersionSource.ASSUMED)], VERSIONS, now=3) == 2


def test_a_step_that_is_trained_again_makes_nothing_newer_or_older() -> None:
    """Its weights have another name, and were published after those of later steps."""
    again = WeightVersion(4, "v2.2", 2, "other")
    versions = [*VERSIONS, again]
    assert staleness([VersionSpan("v2", 0, 1)], versions, now=again.step) == 0
    newest = newest_of(versions)
    assert newest is not None
    assert newest.name == "v3"
    third = newest_of([*versions, WeightVersion(5, "v3.2", 3, "other")])
    assert third is not None
    assert third.name == "v3.2"
    assert newest_of([]) is None
