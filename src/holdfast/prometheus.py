"""Metrics in Prometheus' text format, as the gateway and the embedded engine show them.

There is no registry of metrics. For each request, the code that counts builds the metrics from its
own numbers.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[str, str, float]
"""The suffix of the metric's name, the labels and the value."""


class Family(Struct, frozen=True):
    """One metric. `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    samples: tuple[Sample, ...]


def single(name: str, kind: str, value: float) -> Family:
    return Family(name, kind, (("", "", float(value)),))


def label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def histogram(
    labels: str, limits: Iterable[float], *, counts: Sequence[int], total: float
) -> list[Sample]:
    """Returns the samples of a histogram. `counts` has the number of values in each bucket, not
    cumulated. The last count is for the bucket without a limit."""
    samples: list[Sample] = []
    below = 0
    for limit, count in zip((*limits, "+Inf"), counts, strict=True):
        below += count
        samples.append(("_bucket", _joined(labels, f'le="{limit}"'), float(below)))
    return [*samples, ("_sum", labels, float(total)), ("_count", labels, float(below))]


def render(groups: Iterable[tuple[str, Iterable[Family]]], *, prefix: str) -> str:
    """Renders the metrics of one or more sources, each given as its labels ("" for none) and its
    families. Does not add up the numbers of several sources, because a restarted source counts from
    0."""
    merged: dict[tuple[str, str], list[str]] = {}
    for source, families in groups:
        for family in families:
            lines = merged.setdefault((f"{prefix}{family.name}", family.kind), [])
            for suffix, labels, value in family.samples:
                listed = _joined(source, labels)
                braces = f"{{{listed}}}" if listed else ""
                lines.append(f"{prefix}{family.name}{suffix}{braces} {value:.15g}\n")
    return "".join(
        text
        for (name, kind), lines in merged.items()
        for text in (f"# TYPE {name} {kind}\n", *lines)
    )


def _joined(*labels: str) -> str:
    return ",".join(filter(None, labels))
