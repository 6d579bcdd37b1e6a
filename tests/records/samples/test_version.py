"""Staleness is a difference of ordinals, or unknown."""

from holdfast.records.samples.version import WeightVersion, staleness
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
