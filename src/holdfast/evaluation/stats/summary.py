"""Writes a run's results as text for a terminal and as JSON for scripts.

The JSON has the keys of eval-protocol's summaries, with the same meaning, and Holdfast's own keys.
Ids and messages come from data sets and models, so their control characters are escaped.
"""

import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.engine.progress.clustered import error_text, number_text
from holdfast.engine.report import escape_text, many, sampled_text, usage_text
from holdfast.evaluation.stats.estimates import Estimate, PassRate, bound_when_all_alike
from holdfast.evaluation.stats.results import Results, Root, RowResult
from holdfast.evaluation.stats.verdict import Aggregation, Verdict
from holdfast.records.failure import fold_traceback
from holdfast.records.usage import NOTHING, total_usage

Fields = dict[str, object]
FORMAT = 1
MAX_SLOWEST = 3
MAX_ROOTS = 5
TRACEBACK_LINES = 12
Z = 1.959964
_FRAME = re.compile(r'  File "([^"]+)", line ')
_PACKAGE, _PYTHON = Path(__file__).parents[2], Path(os.__file__).parent


# --- for people


def summary_text(results: Results, verdict: Verdict) -> str:
    """Returns a few lines, with the score first and failures last."""
    lines = [_format_head(results, verdict), _format_counts(results, verdict)]
    lines += _format_details(results, verdict)
    lines.append(_format_work(results))
    lines += _format_failures(results.roots)
    lines.append(_format_commands(results))
    return "\n".join(line for line in lines if line)


def _format_head(results: Results, verdict: Verdict) -> str:
    line = f"{escape_text(results.run)}: {score_text(verdict)}"
    if verdict.passed is not None:
        line += f"  {'PASSED' if verdict.passed else 'FAILED'}: {verdict.reason}"
    return line


def score_text(verdict: Verdict) -> str:
    """Returns the score as text, for example `0.6250 ± 0.0312 (SE), 95% [0.5610, 0.6830]`."""
    if verdict.score is None:
        return "no score"
    text = number_text(verdict.score)
    if verdict.standard_error:
        text += f"{error_text(verdict.standard_error)} (SE)"
    if verdict.standard_error and verdict.interval is not None:
        low, high = verdict.interval
        text += f", 95% [{number_text(low)}, {number_text(high)}]"
    if verdict.aggregation is not Aggregation.MEAN:
        text += f", {verdict.aggregation} of {many(len(verdict.run_scores), 'run')}"
    return text


def _format_counts(results: Results, verdict: Verdict) -> str:
    runs = f" ({many(results.num_runs, 'run')})" if results.num_runs > 1 else ""
    shape = f"{many(verdict.tasks, 'task')} × {many(results.samples, 'sample')}{runs}"
    parts_of_line = [f"{verdict.scored:,} of {many(verdict.rows, 'row')} scored ({shape})"]
    for number, what, parts in (
        (verdict.truncated, "truncated", verdict.truncated_by_reason),
        (verdict.failed, "failed for good", verdict.failed_by_cause),
        (verdict.unscored, "without a score", {}),
        (verdict.unsettled, "not settled yet", {}),
    ):
        if number:
            by = ", ".join(f"{total:,} {escape_text(name)}" for name, total in parts.items())
            parts_of_line.append(f"{number:,} {what}{f' ({by})' if by else ''}")
    return f"  {'; '.join(parts_of_line)}"


def _format_details(results: Results, verdict: Verdict) -> list[str]:
    lines = []
    if rates := [
        *_format_rates("pass@", verdict.pass_at),
        *_format_rates("pass^", verdict.pass_all[1:]),
    ]:
        lines.append(f"  {'  '.join(rates)}")
    if verdict.disturbed is not None:
        both = (("clean", verdict.clean), ("retried or interrupted", verdict.disturbed))
        parts = [f"{name} {_format_estimate(group)}" for name, group in both if group is not None]
        lines.append(f"  {' · '.join(parts)}")
    scored = results.by_task()  # Tasks without a score tell nothing.
    if verdict.binary and verdict.score in (0.0, 1.0) and scored:
        rare = bound_when_all_alike(len(scored))
        bound = f"above {1 - rare:.3f}" if verdict.score else f"below {rare:.3f}"
        lines.append(f"  all alike: their error is unknown; 95% sure: {bound}")
    if verdict.metrics:
        parts = [
            f"{escape_text(name)} {_format_estimate(estimate)}"
            for name, estimate in verdict.metrics.items()
        ]
        lines.append(f"  metrics: {', '.join(parts)}")
    if len(verdict.run_scores) > 1:
        lines.append(f"  by run: {', '.join(map(number_text, verdict.run_scores))}")
    return lines


def _format_rates(name: str, rates: Sequence[PassRate]) -> list[str]:
    return [f"{name}{rate.k} {rate.value:.3f}" for rate in rates]


def _format_estimate(estimate: Estimate) -> str:
    return (
        f"{number_text(estimate.value)}{error_text(estimate.standard_error)} (n={estimate.rows:,})"
    )


def _format_work(results: Results) -> str:
    turns, tokens = (
        sum(row.turns for row in results.rows),
        sum(row.sampled_tokens for row in results.rows),
    )
    uncounted = sum(row.uncounted_turns for row in results.rows)
    line = f"  {many(turns, 'turn')}, {sampled_text(tokens, uncounted=uncounted)}"
    if slow := slowest(results.rows):
        names = ", ".join(f"{escape_text(row.name)} {row.seconds:.1f} s" for row in slow)
        line += f"; slowest: {names}"
    used = total_usage(results.used)
    if used != NOTHING:
        line += f"\n  {usage_text(used.as_fields())}"
    return line if results.cost is None else f"{line}\n  cost: {escape_text(str(results.cost))}"


def slowest(rows: Sequence[RowResult], number: int = MAX_SLOWEST) -> list[RowResult]:
    """Returns the rows that took longest, or [] without measured times."""
    timed = [row for row in rows if row.seconds > 0]
    return sorted(timed, key=lambda row: (-row.seconds, row.task, row.sample))[:number]


def _format_failures(roots: Sequence[Root]) -> list[str]:
    """Returns lines for the summary. Failures for good are listed. Failures that a retry or a
    corrected function overcame are only counted."""
    lines = []
    final = [root for root in roots if root.permanent]
    if overcome := sum(root.failures for root in roots if not root.permanent):
        lines.append(f"  {many(overcome, 'failure')} overcome, with no effect on the score")
    for root in final[:MAX_ROOTS]:
        lines.append(
            f"  [{root.cause}, {root.phase}] {root.failures} × {escape_text(root.message)} "
            f"({many(root.permanent, 'row')} failed for good; for instance "
            f"{escape_text(root.example)})"
        )
        text = fold_traceback(root.traceback, root.message).rstrip()
        last = _from_user_code(text.splitlines())[-TRACEBACK_LINES:]
        lines += [f"      {escape_text(line)}" for line in last]
    if len(final) > MAX_ROOTS:
        lines.append(f"  … and {many(len(final) - MAX_ROOTS, 'other kind')} of failure")
    return lines


def _from_user_code(lines: list[str]) -> list[str]:
    """Returns the lines that begin with the first frame of user code. Returns all lines if there is
    no such frame."""
    for number, line in enumerate(lines):
        if (file := _FRAME.match(line)) and not _is_library(Path(file[1])):
            return lines[number:]
    return lines


def _is_library(path: Path) -> bool:
    python = path.is_relative_to(_PYTHON) and "site-packages" not in path.parts
    return python or path.is_relative_to(_PACKAGE) or str(path).startswith("<")


def _format_commands(results: Results) -> str:
    if results.spec is None:
        return f"  from {escape_text(results.source)}" if results.source else ""
    where = f" --journal {shlex.quote(results.source)}" if results.source else ""
    name = shlex.quote(escape_text(results.run))
    return f"  holdfast show {name}{where}\n  holdfast report {name}{where} --out report.html"


# --- for scripts


def summary_json(
    results: Results,
    verdict: Verdict,
    *,
    suite: str | None = None,
    timestamp: int | None = None,
) -> Fields:
    """Returns the fields of the JSON summary: eval-protocol's keys, then Holdfast's. An interval or
    error that is unknown is left out, and is not written as 0."""
    fields: Fields = {
        "suite": suite or results.run,
        "model": results.model,
        "agg_score": verdict.score,
        "num_runs": results.num_runs,
        "rows": verdict.rows,
    }
    if verdict.interval is not None:
        fields |= {"agg_ci_low": verdict.interval[0], "agg_ci_high": verdict.interval[1]}
    if verdict.standard_error is not None:
        fields["standard_error"] = verdict.standard_error
    if verdict.metrics:
        fields["metrics_agg"] = {
            name: _metric_fields(estimate) for name, estimate in verdict.metrics.items()
        }
    fields["timestamp"] = int(time.time()) if timestamp is None else timestamp
    return fields | _own_fields(results, verdict)


def _metric_fields(estimate: Estimate) -> Fields:
    """Returns the fields of a metric. Its interval is mean ± 1.96 · SE, and is not cut at 0 and 1,
    because metrics have no bounds."""
    fields: Fields = {"mean": estimate.value}
    if estimate.standard_error is not None:
        margin = Z * estimate.standard_error
        fields |= {
            "ci_low": estimate.value - margin,
            "ci_high": estimate.value + margin,
            "standard_error": estimate.standard_error,
        }
    return fields


def _own_fields(results: Results, verdict: Verdict) -> Fields:
    plain: Fields = {
        "holdfast_format": FORMAT,
        "run": results.run,
        "journal": results.source,
        "aggregation": verdict.aggregation.value,
        "passed": verdict.passed,
        "reason": verdict.reason,
        "threshold": msgspec.to_builtins(verdict.threshold),
        "run_scores": list(verdict.run_scores),
        "fixed_set_error": verdict.fixed_set_error,
        "tasks": verdict.tasks,
        "samples": results.samples,
        "scored": verdict.scored,
        "unscored": verdict.unscored,
        "unsettled": verdict.unsettled,
        "failed": verdict.failed,
        "failed_by_cause": verdict.failed_by_cause,
        "truncated": verdict.truncated,
        "truncated_by_reason": verdict.truncated_by_reason,
        "clean": msgspec.to_builtins(verdict.clean),
        "disturbed": msgspec.to_builtins(verdict.disturbed),
        "turns": sum(row.turns for row in results.rows),
        "sampled_tokens": sum(row.sampled_tokens for row in results.rows),
        "usage": {model: usage.as_fields() for model, usage in results.used.items()},
        "cost": msgspec.to_builtins(results.cost),
    }
    lists: Fields = {
        "pass_at": {str(rate.k): rate.value for rate in verdict.pass_at},
        "pass_all": {str(rate.k): rate.value for rate in verdict.pass_all},
        "failures": [msgspec.structs.asdict(root) for root in results.roots],
        "slowest": [{"row": row.name, "seconds": row.seconds} for row in slowest(results.rows)],
    }
    return plain | lists
