"""Summary: what a run's results say, as text for a terminal and as JSON for scripts.

The JSON has the keys of eval-protocol's summaries with their meaning, and ours beside them.
Ids and messages come from data sets and models: control characters in them are shown, never
obeyed.
"""

import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.engine.report import many
from holdfast.evaluation.stats.estimates import Estimate, PassRate, bound_when_all_alike
from holdfast.evaluation.stats.results import Results, Root, RowResult
from holdfast.evaluation.stats.verdict import Aggregation, Verdict

Fields = dict[str, object]
FORMAT = 1
SLOWEST = 3
ROOTS = 5
TRACEBACK_LINES = 12
Z = 1.959964
_FRAME = re.compile(r'  File "([^"]+)", line ')
_OURS, _PYTHON = Path(__file__).parents[2], Path(os.__file__).parent


# --- for people


def summary_text(results: Results, verdict: Verdict) -> str:
    """A few lines: the score first, what is wrong last."""
    lines = [_head(results, verdict), _counts(results, verdict)]
    lines += _details(results, verdict)
    lines.append(_work(results))
    lines += _failures(results.roots)
    lines.append(_further(results))
    return "\n".join(line for line in lines if line)


def shown(text: str) -> str:
    """On one line, with control characters as escapes."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _head(results: Results, verdict: Verdict) -> str:
    told = f"{shown(results.run)}: {score_text(verdict)}"
    if verdict.passed is not None:
        told += f"  {'PASSED' if verdict.passed else 'FAILED'}: {verdict.reason}"
    return told


def score_text(verdict: Verdict) -> str:
    """`0.6250 ± 0.0312 (SE), 95% [0.5610, 0.6830]`"""
    if verdict.score is None:
        return "no score"
    told = f"{verdict.score:.4f}"
    if verdict.standard_error is not None:
        told += f" ± {verdict.standard_error:.4f} (SE)"
    if verdict.interval is not None:
        low, high = verdict.interval
        told += f", 95% [{low:.4f}, {high:.4f}]"
    if verdict.aggregation is not Aggregation.MEAN:
        told += f", {verdict.aggregation} of {many(len(verdict.run_scores), 'run')}"
    return told


def _counts(results: Results, verdict: Verdict) -> str:
    runs = f" ({many(results.num_runs, 'run')})" if results.num_runs > 1 else ""
    shape = f"{many(verdict.tasks, 'task')} × {many(results.samples, 'sample')}{runs}"
    told = [f"{verdict.scored:,} of {many(verdict.rows, 'row')} scored ({shape})"]
    for number, what, parts in (
        (verdict.truncated, "truncated", verdict.truncated_by_reason),
        (verdict.failed, "failed for good", verdict.failed_by_cause),
        (verdict.unscored, "without a score", {}),
        (verdict.unsettled, "not settled yet", {}),
    ):
        if number:
            by = ", ".join(f"{total:,} {shown(name)}" for name, total in parts.items())
            told.append(f"{number:,} {what}{f' ({by})' if by else ''}")
    return f"  {'; '.join(told)}"


def _details(results: Results, verdict: Verdict) -> list[str]:
    lines = []
    if rates := [*_rates("pass@", verdict.pass_at), *_rates("pass^", verdict.pass_all[1:])]:
        lines.append(f"  {'  '.join(rates)}")
    if verdict.disturbed is not None:
        both = (("clean", verdict.clean), ("retried or interrupted", verdict.disturbed))
        told = [f"{name} {_estimate(found)}" for name, found in both if found is not None]
        lines.append(f"  {' · '.join(told)}")
    if verdict.binary and verdict.score in (0.0, 1.0) and verdict.tasks:
        rare = bound_when_all_alike(verdict.tasks)
        bound = f"above {1 - rare:.3f}" if verdict.score else f"below {rare:.3f}"
        lines.append(f"  all alike: no error can be told from them; 95% sure: {bound}")
    if verdict.metrics:
        told = [f"{shown(name)} {_estimate(one)}" for name, one in verdict.metrics.items()]
        lines.append(f"  metrics: {', '.join(told)}")
    if len(verdict.run_scores) > 1:
        lines.append(f"  by run: {', '.join(f'{one:.4f}' for one in verdict.run_scores)}")
    return lines


def _rates(name: str, rates: Sequence[PassRate]) -> list[str]:
    return [f"{name}{one.k} {one.value:.3f}" for one in rates]


def _estimate(found: Estimate) -> str:
    error = "" if found.standard_error is None else f" ± {found.standard_error:.4f}"
    return f"{found.value:.4f}{error} (n={found.rows:,})"


def _work(results: Results) -> str:
    turns, tokens = (
        sum(row.turns for row in results.rows),
        sum(row.sampled_tokens for row in results.rows),
    )
    told = f"  {many(turns, 'turn')}, {many(tokens, 'sampled token')}"
    if slow := slowest(results.rows):
        names = ", ".join(f"{shown(row.name)} {row.seconds:.1f} s" for row in slow)
        told += f"; slowest: {names}"
    return told


def slowest(rows: Sequence[RowResult], number: int = SLOWEST) -> list[RowResult]:
    """Those that took longest; none where nobody measured."""
    timed = [row for row in rows if row.seconds > 0]
    return sorted(timed, key=lambda row: (-row.seconds, row.task, row.sample))[:number]


def _failures(roots: Sequence[Root]) -> list[str]:
    lines = []
    for root in roots[:ROOTS]:
        final = f"{root.permanent} for good" if root.permanent else "made good by retries"
        lines.append(
            f"  [{root.cause}, {root.phase}] {root.failures} × {shown(root.message)} "
            f"({final}; for instance {shown(root.example)})"
        )
        if root.permanent:
            last = _from_their_code(root.traceback.rstrip().splitlines())[-TRACEBACK_LINES:]
            lines += [f"      {shown(line)}" for line in last]
    if len(roots) > ROOTS:
        lines.append(f"  … and {many(len(roots) - ROOTS, 'other kind')} of failure")
    return lines


def _from_their_code(lines: list[str]) -> list[str]:
    """From the first frame that is neither ours nor Python's, if there is one."""
    for number, line in enumerate(lines):
        if (file := _FRAME.match(line)) and not _is_ours(Path(file[1])):
            return lines[number:]
    return lines


def _is_ours(path: Path) -> bool:
    python = path.is_relative_to(_PYTHON) and "site-packages" not in path.parts
    return python or path.is_relative_to(_OURS) or str(path).startswith("<")


def _further(results: Results) -> str:
    if results.spec is None:
        return f"  from {shown(results.source)}" if results.source else ""
    where = f" --journal {shlex.quote(results.source)}" if results.source else ""
    name = shlex.quote(shown(results.run))
    return f"  holdfast show {name}{where}\n  holdfast report {name}{where} --out report.html"


# --- for scripts


def summary_json(
    results: Results,
    verdict: Verdict,
    *,
    suite: str | None = None,
    timestamp: int | None = None,
) -> Fields:
    """eval-protocol's keys, then ours. What is not known is left out, never a zero."""
    told: Fields = {
        "suite": suite or results.run,
        "model": results.model,
        "agg_score": verdict.score,
        "num_runs": results.num_runs,
        "rows": verdict.rows,
    }
    if verdict.interval is not None:
        told |= {"agg_ci_low": verdict.interval[0], "agg_ci_high": verdict.interval[1]}
    if verdict.standard_error is not None:
        told["standard_error"] = verdict.standard_error
    if verdict.metrics:
        told["metrics_agg"] = {name: _metric(one) for name, one in verdict.metrics.items()}
    told["timestamp"] = int(time.time()) if timestamp is None else timestamp
    return told | _ours(results, verdict)


def _metric(found: Estimate) -> Fields:
    """The interval is mean ± 1.96 · SE; it is not cut at 0 and 1, which a metric may exceed."""
    told: Fields = {"mean": found.value}
    if found.standard_error is not None:
        margin = Z * found.standard_error
        told |= {
            "ci_low": found.value - margin,
            "ci_high": found.value + margin,
            "standard_error": found.standard_error,
        }
    return told


def _ours(results: Results, verdict: Verdict) -> Fields:
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
    }
    lists: Fields = {
        "pass_at": {str(one.k): one.value for one in verdict.pass_at},
        "pass_all": {str(one.k): one.value for one in verdict.pass_all},
        "failures": [_root(one) for one in results.roots],
        "slowest": [{"row": row.name, "seconds": row.seconds} for row in slowest(results.rows)],
    }
    return plain | lists


def _root(root: Root) -> Fields:
    told: Fields = msgspec.structs.asdict(root)
    return told
