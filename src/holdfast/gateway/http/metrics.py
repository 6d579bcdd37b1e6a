"""Metrics: counts of what the gateway did.

Labels are names of routes and statuses, and never contain text that a client sent.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from holdfast.prometheus import Family, Sample, histogram, label, single

BUCKET_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Metrics:
    """Counts requests as they end."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._answers: Counter[str] = Counter()
        self._seconds: dict[str, _Histogram] = {}

    def count(self, wire: str, *, status: str, seconds: float, replayed: bool | None) -> None:
        """Counts a request. `replayed` tells whether the response was recorded before; it is None
        without a response."""
        self._calls[wire, status] += 1
        if replayed is not None:
            self._answers["replayed" if replayed else "sampled"] += 1
        self._seconds.setdefault(wire, _Histogram()).add(seconds)

    def families(self, gauges: Mapping[str, float]) -> list[Family]:
        calls = [
            ("", f"{label('wire', wire)},{label('status', status)}", float(count))
            for (wire, status), count in sorted(self._calls.items())
        ]
        answers = [
            ("", label("source", source), float(self._answers[source]))
            for source in ("replayed", "sampled")
        ]
        seconds = [
            sample
            for wire, durations in sorted(self._seconds.items())
            for sample in durations.samples(label("wire", wire))
        ]
        return [
            *(
                single(name, "counter" if name.endswith("_total") else "gauge", value)
                for name, value in gauges.items()
            ),
            Family("calls_total", "counter", tuple(calls)),
            Family("answers_total", "counter", tuple(answers)),
            Family("call_seconds", "histogram", tuple(seconds)),
        ]


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKET_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self._sum += seconds

    def samples(self, labels: str) -> list[Sample]:
        return histogram(labels, BUCKET_SECONDS, counts=self._counts, total=self._sum)
