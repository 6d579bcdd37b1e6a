"""Comparison: how one run's scores differ from another's on the tasks that both have.

Paired by task, which takes the tasks' own difficulty out of the difference. Whatever is left out
(tasks of only one run, rows that failed) is told.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from holdfast.engine.report import many
from holdfast.evaluation.stats.estimates import Paired, paired
from holdfast.evaluation.stats.results import Results
from holdfast.evaluation.stats.summary import shown
from holdfast.records.errors import UsageError

LISTED = 5
_WORDS = {
    "rollout": "another rollout, or another version of its code",
    "scorer": "another scorer, or another version of its code",
    "tasks": "other tasks, contents or order",
}
"""Of what is recorded as a digest, which says nothing to a reader."""


class Side(Struct, frozen=True):
    """What is told of each of the two."""

    run: str
    source: str
    model: str
    rows: int
    scored: int
    failed: int
    unsettled: int


class Comparison(Struct, frozen=True):
    """b against a. Positive differences: b is higher."""

    a: Side
    b: Side
    metric: str
    """`score`, or the name of the metric that was compared."""
    paired: Paired
    spec_differences: dict[str, tuple[str, str]]
    """In what the two runs are not the same run: (a's, b's)."""


def compare(a: Results, b: Results, *, metric: str | None = None) -> Comparison:
    """`UsageError` where there is nothing to compare, with what there is instead."""
    clusters = [_clusters(side, metric) for side in (a, b)]
    found = paired(*clusters)
    if found is None:
        raise UsageError(
            f"runs {a.run!r} and {b.run!r} have no scored task in common: {a.run!r} has "
            f"{_some(clusters[0])}, {b.run!r} has {_some(clusters[1])}"
        )
    return Comparison(_side(a), _side(b), metric or "score", found, _spec_differences(a, b))


def _clusters(results: Results, metric: str | None) -> dict[str, list[float]]:
    clusters = results.by_task(metric)
    if clusters:
        return clusters
    if metric is not None:
        has = ", ".join(results.metrics) or "no metrics"
        raise UsageError(f"run {results.run!r} has no metric {metric!r}; it has {has}")
    if not results.rows:
        raise UsageError(f"run {results.run!r} has no rows")
    raise UsageError(
        f"run {results.run!r} has no scores: of {many(len(results.rows), 'row')}, "
        f"{results.unsettled} are not settled yet and {len(results.failed)} failed for good"
    )


def _some(clusters: Mapping[str, object]) -> str:
    names = [repr(name) for name in list(clusters)[:3]]
    return f"{', '.join(names)}{', …' if len(clusters) > len(names) else ''}"


def _side(results: Results) -> Side:
    return Side(
        run=results.run,
        source=results.source,
        model=results.model,
        rows=len(results.rows),
        scored=len(results.scored),
        failed=len(results.failed),
        unsettled=results.unsettled,
    )


def _spec_differences(a: Results, b: Results) -> dict[str, tuple[str, str]]:
    first, second = _facts(a), _facts(b)
    return {
        name: (_said(name, first.get(name)), _said(name, second.get(name)))
        for name in [*first, *(name for name in second if name not in first)]
        if name in first and name in second and first[name] != second[name]
    }


def _facts(results: Results) -> dict[str, object]:
    facts: dict[str, object] = {"model": results.model, "samples": results.samples}
    if results.sampling is not None:
        chosen = msgspec.structs.asdict(results.sampling)
        facts |= {f"sampling.{name}": value for name, value in chosen.items()}
    if (spec := results.spec) is not None:
        names = ("seed", "rollout", "scorer", "renderer", "tasks")
        facts |= {name: getattr(spec, name) for name in names}
        chosen = msgspec.structs.asdict(spec.group)
        facts |= {f"group.{name}": value for name, value in chosen.items()}
    return facts


def _said(name: str, value: object) -> str:
    return str(value) if name not in _WORDS or value else "none"


# --- for people


def comparison_text(found: Comparison) -> str:
    told = found.paired
    lines = [_head(found), f"  {_difference(told)}", f"  {_wins(told)}"]
    for name, side, only in (("A", found.a, told.only_a), ("B", found.b, told.only_b)):
        lines += _left_out(name, side, only)
    lines += _differing(found)
    lines += _changes(told)
    return "\n".join(lines)


def _head(found: Comparison) -> str:
    told, what = found.paired, "" if found.metric == "score" else f" ({shown(found.metric)})"
    return (
        f"A {shown(found.a.run)}: {told.mean_a:.4f}   B {shown(found.b.run)}: {told.mean_b:.4f}"
        f"{what}   on {many(told.tasks, 'task')} of both"
    )


def _difference(told: Paired) -> str:
    line = f"B - A: {told.difference:+.4f}"
    if told.standard_error is None or told.interval is None:
        return f"{line} (one task: no error can be told)"
    low, high = told.interval
    line += f" ± {told.standard_error:.4f} (SE), 95% [{low:+.4f}, {high:+.4f}]"
    if told.p_value is None:
        return f"{line}; no task differs"
    return f"{line}, p = {told.p_value:.3g} (sign flips)"


def _wins(told: Paired) -> str:
    line = f"B is higher on {told.wins}, lower on {told.losses}, the same on {told.ties}"
    return line if told.sign_p_value is None else f"{line}; sign test p = {told.sign_p_value:.3g}"


def _left_out(name: str, side: Side, only: tuple[str, ...]) -> list[str]:
    lines = []
    if only:
        names = ", ".join(shown(one) for one in only[:LISTED])
        more = ", …" if len(only) > LISTED else ""
        lines.append(f"  left out: {many(len(only), 'task')} that only {name} has: {names}{more}")
    missing = side.rows - side.scored
    if missing:
        lines.append(
            f"  {name} lacks {many(missing, 'score')} of {many(side.rows, 'row')} "
            f"({side.failed} failed for good, {side.unsettled} not settled)"
        )
    return lines


def _differing(found: Comparison) -> list[str]:
    if not found.spec_differences:
        return []
    lines = ["  the runs differ in"]
    for name, (a, b) in found.spec_differences.items():
        words = _WORDS.get(name)
        lines.append(f"    {name}: {words}" if words else f"    {name}: {shown(a)} → {shown(b)}")
    return lines


def biggest_changes(told: Paired) -> list[tuple[str, float]]:
    moved = [(name, change) for name, change in told.by_task.items() if change]
    return sorted(moved, key=lambda item: (-abs(item[1]), item[0]))


def _changes(told: Paired) -> list[str]:
    moved = biggest_changes(told)
    if not moved:
        return []
    lines = ["  biggest changes"]
    lines += [f"    {change:+.4f}  {shown(name)}" for name, change in moved[: 2 * LISTED]]
    if len(moved) > 2 * LISTED:
        lines.append(f"    … and {many(len(moved) - 2 * LISTED, 'other task')} that changed")
    return lines
