"""A Verdict is one number for a run, with its error, and says whether the run passes.

Only rows with a score count. A permanent failure is counted by its cause and is not an outcome of
the policy. A truncation is an outcome, and is scored (I5).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum

from msgspec import Struct

from holdfast.engine.progress.clustered import clustered_error, rounding, sum_of
from holdfast.evaluation.stats.bootstrap import (
    Bootstrap,
    Clusters,
    Interval,
    bootstrap,
    mean_of_runs,
    totals_of,
)
from holdfast.evaluation.stats.estimates import (
    Estimate,
    PassRate,
    clustered_mean,
    fixed_set_error,
    is_binary,
    pass_rate,
)
from holdfast.evaluation.stats.results import Results, RowResult
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import Status

LEAST_PERCENT = 10
"""A threshold of at least this number may be meant as a percentage."""


class Aggregation(StrEnum):
    """How the means of several runs become one number. With one run, all but `bootstrap` agree."""

    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    BOOTSTRAP = "bootstrap"
    """The mean of the bootstrap's resampled means."""


class Threshold(Struct, frozen=True):
    """The condition of passing."""

    success: float
    standard_error: float | None = None
    """The upper bound on `Verdict.fixed_set_error`, eval-protocol's standard error, which only a
    mean has."""
    clustered_standard_error: float | None = None
    """The upper bound on `Verdict.standard_error`, the error in reports. An unknown error does not
    pass."""

    def __post_init__(self) -> None:
        for name in ("success", "standard_error", "clustered_standard_error"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UsageError(f"the threshold's {name} must be a finite number, not {value}")
            if name != "success" and value is not None and value < 0:
                raise UsageError(f"the threshold's {name} must be 0 or more, not {value}")


class Verdict(Struct, frozen=True, omit_defaults=True):
    score: float | None
    """The score, or None if no row has one."""
    aggregation: Aggregation
    passed: bool | None
    """Whether the run passed. None if there is no threshold and no failure that fails the test."""
    reason: str
    """Why the run passed or not, as text. "" without a decision."""
    standard_error: float | None = None
    """The standard error, clustered by task. For `max`, `min` and `bootstrap`, it is the standard
    error of the bootstrap."""
    interval: Interval | None = None
    """The 95 % interval of the cluster bootstrap over tasks."""
    resamples: int = 0
    run_scores: tuple[float, ...] = ()
    """The mean of each run with a score."""
    threshold: Threshold | None = None
    tasks: int = 0
    rows: int = 0
    scored: int = 0
    unscored: int = 0
    """The number of outcomes without a score, because there was no scorer or the score was
    invalid."""
    unsettled: int = 0
    failed: int = 0
    failed_by_cause: dict[str, int] = {}
    """The rows that failed for good, by cause: infrastructure, environment, code."""
    truncated: int = 0
    truncated_by_reason: dict[str, int] = {}
    """The truncated rows, by the limit that the policy reached. They are scored like any other
    outcome."""
    clean: Estimate | None = None
    disturbed: Estimate | None = None
    """The scores of retried, refilled or interrupted rows, which should be like those of clean
    rows."""
    binary: bool = False
    """Whether every score is 0 or 1."""
    pass_at: tuple[PassRate, ...] = ()
    """pass@k for k = 1, 2, 4, … and for all samples, if scores are binary and tasks have several
    samples."""
    pass_all: tuple[PassRate, ...] = ()
    metrics: dict[str, Estimate] = {}
    fixed_set_error: float | None = None
    """eval-protocol's standard error, which only `mean` has."""
    reached: bool | None = None
    """Whether the score reaches the threshold. Failed rows do not change this value. It is None if
    there is no threshold."""


def verdict_of(
    results: Results,
    *,
    aggregation: Aggregation | str = Aggregation.MEAN,
    threshold: Threshold | None = None,
    failures_fail: bool | None = None,
) -> Verdict:
    """Returns the run's verdict. `failures_fail` says whether permanent failures fail the test. If
    it is True or False, a run without any score fails, too. If it is None, only a threshold
    decides."""
    method = _method(aggregation)
    runs = [run for run in results.by_run() if run]
    resampled = bootstrap(totals_of(runs), combine=_COMBINE[method]) if runs else None
    score, error = _aggregate(runs, method, resampled)
    clusters = results.by_task()
    fixed = fixed_set_error(clusters) if method is Aggregation.MEAN else None
    reached, reason = _decide(score, error, fixed, threshold, results)
    passed, reason = _test_passed(reached, reason, failures_fail, results)
    scores = [row.score for row in results.rows if row.score is not None]
    binary = bool(scores) and is_binary(scores)
    rates = _rates(clusters) if binary and results.samples > 1 else ((), ())
    by_status = Counter(row.status for row in results.rows)
    return Verdict(
        score=score,
        aggregation=method,
        passed=passed,
        reason=reason,
        standard_error=error,
        interval=resampled.interval if resampled else None,
        resamples=resampled.resamples if resampled else 0,
        run_scores=tuple(_mean_of(run) for run in runs),
        threshold=threshold,
        tasks=len({row.task for row in results.rows}),
        rows=len(results.rows),
        scored=len(scores),
        unscored=sum(_is_unscored(row) for row in results.rows),
        unsettled=results.unsettled,
        failed=by_status[Status.FAILED.name],
        failed_by_cause=_counts(row.cause or "unknown" for row in results.failed),
        truncated=by_status[Status.TRUNCATED.name],
        truncated_by_reason=_counts(
            row.reason for row in results.rows if row.status == Status.TRUNCATED.name
        ),
        clean=_only(results, disturbed=False),
        disturbed=_only(results, disturbed=True),
        binary=binary,
        pass_at=rates[0],
        pass_all=rates[1],
        metrics=_metrics(results),
        fixed_set_error=fixed,
        reached=reached,
    )


def _method(aggregation: Aggregation | str) -> Aggregation:
    try:
        return Aggregation(aggregation)
    except ValueError:
        known = ", ".join(Aggregation)
        raise UsageError(f"there is no aggregation {aggregation!r}; there is {known}") from None


_COMBINE: dict[Aggregation, Callable[[list[float]], float]] = {
    Aggregation.MEAN: mean_of_runs,
    Aggregation.MAX: max,
    Aggregation.MIN: min,
    Aggregation.BOOTSTRAP: mean_of_runs,
}


def _aggregate(
    runs: list[dict[str, list[float]]], method: Aggregation, resampled: Bootstrap | None
) -> tuple[float | None, float | None]:
    if not runs:
        return None, None
    score = _COMBINE[method]([_mean_of(run) for run in runs])
    if method is Aggregation.MEAN or (len(runs) == 1 and method is not Aggregation.BOOTSTRAP):
        return score, _error_of_mean(runs)
    if resampled is None:  # With one task, nothing can be resampled.
        return score, None
    if method is Aggregation.BOOTSTRAP:
        return resampled.mean, resampled.standard_error
    return score, resampled.standard_error


def _error_of_mean(runs: list[dict[str, list[float]]]) -> float | None:
    """Returns the error of the mean of the runs' means, clustered by task. Each row has the weight
    1 / (runs · rows of its run), and the rows of a task in all runs form one cluster."""
    moved: dict[str, list[float]] = {}
    largest = max(abs(_mean_of(run)) for run in runs)
    for run in runs:
        mean, weight = _mean_of(run), 1 / (len(runs) * sum(map(len, run.values())))
        for task, scores in run.items():
            moved.setdefault(task, []).append(weight * sum_of(score - mean for score in scores))
    return clustered_error([sum_of(moved[task]) for task in sorted(moved)], of=largest)


def _mean_of(run: Clusters) -> float:
    scores = [score for task in sorted(run) for score in run[task]]
    return sum_of(scores) / len(scores)


def _decide(
    score: float | None,
    error: float | None,
    fixed: float | None,
    threshold: Threshold | None,
    results: Results,
) -> tuple[bool | None, str]:
    if threshold is None:
        return None, ""
    if score is None:
        return False, f"no row has a score ({_explain_no_score(results)})"
    if score < threshold.success - rounding(threshold.success):
        reason = f"score {_short(score)} is below the threshold of {threshold.success:g}"
        return False, f"{reason}{_about_shares(threshold.success, results)}"
    reasons = [f"score {_short(score)} reaches the threshold of {threshold.success:g}"]
    if threshold.standard_error is not None and fixed is not None:
        reasons.append(_bounded("standard error (of a fixed set)", fixed, threshold.standard_error))
    if (most := threshold.clustered_standard_error) is not None:
        reasons.append(_bounded("clustered standard error", error, most))
    failing = [reason_text for reason_text in reasons if reason_text.startswith("but ")]
    return (False, f"{reasons[0]}, {failing[0]}") if failing else (True, " ".join(reasons))


def _about_shares(wanted: float, results: Results) -> str:
    """Returns a hint if the threshold `wanted` is above 1 but no score is, since the threshold may
    be meant as a percentage. Returns "" otherwise."""
    if wanted <= 1 or any(row.score is not None and row.score > 1 for row in results.rows):
        return ""
    meant = f" (in shares, {wanted:g} % is {wanted / 100:g})" if wanted >= LEAST_PERCENT else ""
    return f", and no score is above 1{meant}"


def _bounded(what: str, error: float | None, most: float) -> str:
    allowed = f"{most:g} that is allowed"
    if error is None:
        return f"but with one task its {what} is unknown (of {allowed})"
    if error > most + rounding(error):
        return f"but its {what} {_short(error)} is above the {allowed}"
    return f"with a {what} of {_short(error)} (of {allowed})"


def _test_passed(
    reached: bool | None, reason: str, failures_fail: bool | None, results: Results
) -> tuple[bool | None, str]:
    """Returns the threshold's result, unless failures or missing scores fail the test."""
    failed = len(results.failed)
    if failures_fail and failed:
        broken = f"{failed} of {len(results.rows)} rows failed for good"
        return False, f"{reason}, but {broken}" if reached else "; ".join(
            filter(None, (reason, broken))
        )
    if failures_fail is not None and reached is None and not results.scored:
        return False, f"no row has a score ({_explain_no_score(results)})"
    return reached, reason


def _explain_no_score(results: Results) -> str:
    if not results.rows:
        return "there are no rows"
    failed, unsettled = len(results.failed), results.unsettled
    rest = len(results.rows) - failed - unsettled
    counts = [(failed, "failed for good"), (unsettled, "not settled"), (rest, "not scored")]
    return ", ".join(f"{number} {what}" for number, what in counts if number)


def _short(number: float) -> str:
    """Formats a number with six digits, so that a score just below the threshold does not look
    equal to the threshold."""
    return f"{number:.6g}"


def _is_unscored(row: RowResult) -> bool:
    outcomes = (Status.COMPLETED.name, Status.TRUNCATED.name)
    return row.settled and row.score is None and row.status in outcomes


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _only(results: Results, *, disturbed: bool) -> Estimate | None:
    clusters: dict[str, list[float]] = {}
    for row in results.rows:
        if row.score is not None and row.disturbed is disturbed:
            clusters.setdefault(row.task, []).append(row.score)
    return clustered_mean(clusters)


def _rates(clusters: Clusters) -> tuple[tuple[PassRate, ...], tuple[PassRate, ...]]:
    most = max(map(len, clusters.values()))
    tried = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})
    at = [pass_rate(clusters, k) for k in tried]
    together = [pass_rate(clusters, k, all_of_them=True) for k in tried]
    return (
        tuple(rate for rate in at if rate is not None),
        tuple(rate for rate in together if rate is not None),
    )


def _metrics(results: Results) -> dict[str, Estimate]:
    errors = {name: clustered_mean(results.by_task(name)) for name in results.metrics}
    return {name: estimate for name, estimate in errors.items() if estimate is not None}
