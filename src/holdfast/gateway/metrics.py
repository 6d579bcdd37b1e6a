"""Metrics: what the gateway did, in Prometheus' text format.

Labels are names of routes and statuses, never anything that a client sent.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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

    def text(self, gauges: Mapping[str, float]) -> str:
        lines: list[str] = []
        for name, value in gauges.items():
            lines += [f"# TYPE holdfast_gateway_{name} gauge", f"holdfast_gateway_{name} {value:g}"]
        lines.append("# TYPE holdfast_gateway_calls_total counter")
        lines += [
            f'holdfast_gateway_calls_total{{wire="{wire}",status="{status}"}} {count}'
            for (wire, status), count in sorted(self._calls.items())
        ]
        lines.append("# TYPE holdfast_gateway_answers_total counter")
        lines += [
            f'holdfast_gateway_answers_total{{source="{source}"}} {self._answers[source]}'
            for source in ("replayed", "sampled")
        ]
        lines.append("# TYPE holdfast_gateway_call_seconds histogram")
        for wire, histogram in sorted(self._seconds.items()):
            lines += histogram.lines("holdfast_gateway_call_seconds", f'wire="{wire}"')
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, label: str) -> list[str]:
        lines, below = [], 0
        for limit, count in zip((*BUCKETS, "+Inf"), self._counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{{label},le="{limit}"}} {below}')
        return [*lines, f"{name}_sum{{{label}}} {self._sum:g}", f"{name}_count{{{label}}} {below}"]
