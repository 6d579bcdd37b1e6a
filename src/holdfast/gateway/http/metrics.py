"""Metrics: what the gateway did, in Prometheus' text format.

Labels are names of routes and statuses, never anything that a client sent.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
PREFIX = "holdfast_gateway_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(Struct, frozen=True):
    """One metric: its samples as (suffix of the name, labels, value)."""

    name: str
    kind: str
    samples: tuple[tuple[str, str, float], ...]


def as_text(families: Sequence[tuple[str, Sequence[Family]]]) -> str:
    """The families of one or more processes, each with its label ("" for none). A process that is
    started again counts from 0, which is why they are not added up here."""
    merged: dict[tuple[str, str], list[str]] = {}
    for label, found in families:
        for family in found:
            lines = merged.setdefault((family.name, family.kind), [])
            for suffix, labels, value in family.samples:
                listed = ",".join(one for one in (label, labels) if one)
                braces = f"{{{listed}}}" if listed else ""
                lines.append(f"{PREFIX}{family.name}{suffix}{braces} {value:.15g}")
    told = [
        line
        for (name, kind), lines in merged.items()
        for line in (f"# TYPE {PREFIX}{name} {kind}", *lines)
    ]
    return "\n".join(told) + "\n"


class Metrics:
    """Counted by the gateway as requests end."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._answers: Counter[str] = Counter()
        self._seconds: dict[str, _Histogram] = {}

    def count(self, wire: str, *, status: str, seconds: float, replayed: bool | None) -> None:
        """`replayed`: whether the answer was in the record; None where there was none."""
        self._calls[wire, status] += 1
        if replayed is not None:
            self._answers["replayed" if replayed else "sampled"] += 1
        self._seconds.setdefault(wire, _Histogram()).add(seconds)

    def families(self, gauges: Mapping[str, float]) -> list[Family]:
        calls = [
            ("", f'wire="{wire}",status="{status}"', float(count))
            for (wire, status), count in sorted(self._calls.items())
        ]
        answers = [
            ("", f'source="{source}"', float(self._answers[source]))
            for source in ("replayed", "sampled")
        ]
        seconds = [
            sample
            for wire, histogram in sorted(self._seconds.items())
            for sample in histogram.samples(f'wire="{wire}"')
        ]
        return [
            *(
                Family(name, "counter" if name.endswith("_total") else "gauge", (("", "", value),))
                for name, value in gauges.items()
            ),
            Family("calls_total", "counter", tuple(calls)),
            Family("answers_total", "counter", tuple(answers)),
            Family("call_seconds", "histogram", tuple(seconds)),
        ]


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def samples(self, label: str) -> list[tuple[str, str, float]]:
        found, below = [], 0
        for limit, count in zip((*BUCKETS, "+Inf"), self._counts, strict=True):
            below += count
            found.append(("_bucket", f'{label},le="{limit}"', float(below)))
        return [*found, ("_sum", label, self._sum), ("_count", label, float(below))]
