"""A Comparison is the difference of two runs' scores on their common tasks.

Scores are paired by task, so that the tasks' difficulty does not count. Two tasks are the same if
they have the same id and, as far as is known, ask the same question. The text of a comparison names
everything that is left out: tasks of only one run, tasks with another question, and rows that
failed.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from holdfast.engine.progress.clustered import number_text
from holdfast.engine.report import escape_text, many
from holdfast.evaluation.stats.estimates import Paired, paired
from holdfast.evaluation.stats.results import Results, TaskQuestion
from holdfast.records.errors import UsageError
from holdfast.records.failure import shortened
from holdfast.records.message import Role
from holdfast.records.run import RunSpec
from holdfast.records.task import Task

MAX_LISTED = 5
MAX_PROMPT = 60
"""The longest prompt in a list, in characters."""
_DIGESTS = ("rollout", "scorer", "tasks")
"""The settings that are recorded as digests, which are not readable."""


class Side(Struct, frozen=True):
    """One of the two runs."""

    run: str
    source: str
    model: str
    rows: int
    scored: int
    failed: int
    unsettled: int


class Comparison(Struct, frozen=True):
    """The comparison of b with a. A positive difference means that b is higher."""

    a: Side
    b: Side
    metric: str
    """`score`, or the name of the compared metric."""
    paired: Paired
    spec_differences: dict[str, tuple[str, str]]
    """The settings in which the runs differ: (a's value, b's value)."""
    changed: tuple[str, ...] = ()
    """Tasks with the same id but another question."""
    by_id: bool = False
    """Whether the changed tasks are compared, too."""
    changed_code: dict[str, str] = {}
    """What changed in the code of the rollout and of the scorer, as text."""
    prompts: dict[str, str] = {}
    """The beginning and the end of the user's first message, for each task whose score changed."""


def compare(
    a: Results, b: Results, *, metric: str | None = None, by_id: bool = False
) -> Comparison:
    """Compares b with a. Raises `UsageError` if they have no scored task in common. With `by_id`,
    tasks with the same id are the same, even if they ask something else."""
    clusters = [_clusters(side, metric) for side in (a, b)]
    changed = tuple(name for name in clusters[0] if name in clusters[1] and _differ(a, b, name))
    compared = [
        {name: scores for name, scores in side.items() if by_id or name not in changed}
        for side in clusters
    ]
    difference = paired(*compared)
    if difference is None and changed:
        raise UsageError(
            f"runs {a.run!r} and {b.run!r} have no scored task in common: those with the same id "
            f"ask something else ({_first_names(dict.fromkeys(changed))}); to compare them all the "
            "same, add --by-id"
        )
    if difference is None:
        raise UsageError(
            f"runs {a.run!r} and {b.run!r} have no scored task in common: {a.run!r} has "
            f"{_first_names(clusters[0])}, {b.run!r} has {_first_names(clusters[1])}"
        )
    questions = a.questions | b.questions
    moved = [name for name, _ in biggest_changes(difference) if name in questions]
    return Comparison(
        _side(a),
        _side(b),
        metric or "score",
        difference,
        _spec_differences(a, b),
        changed,
        by_id,
        _changed_code(a.spec, b.spec),
        {name: questions[name].text for name in moved},
    )


def questions_of(tasks: Iterable[Task]) -> dict[str, TaskQuestion]:
    """Returns each task's question, for `Results.questions`. The digest of a question covers the
    ground truth and the messages, except system messages. Runs are often compared to find the
    effect of other system messages, so tasks that differ only in these ask the same question."""
    return {task.id: _question(task) for task in tasks}


def _question(task: Task) -> TaskQuestion:
    messages = [message for message in task.messages if message.role is not Role.SYSTEM]
    content = msgspec.json.encode((messages, task.ground_truth), order="sorted")
    texts = [message.readable for message in messages if message.role is Role.USER]
    line = " ".join(texts[0].split()) if texts else ""
    return TaskQuestion(hashlib.sha256(content).hexdigest(), shortened(line, MAX_PROMPT))


def _differ(a: Results, b: Results, task: str) -> bool:
    """Returns whether the two runs' tasks ask different questions; False if one question is
    unknown."""
    first, second = a.questions.get(task), b.questions.get(task)
    return first is not None and second is not None and first.digest != second.digest


def _clusters(results: Results, metric: str | None) -> dict[str, list[float]]:
    clusters = results.by_task(metric)
    if clusters:
        return clusters
    if metric is not None:
        has = ", ".join(results.metrics) or "no metrics"
        raise UsageError(f"run {results.run!r} has no metric {metric!r}; it has {has}")
    if not results.rows:
        raise UsageError(f"run {results.run!r} has no rows")
    raise UsageError(f"run {results.run!r} has no scores: {_why_none(results)}")


def _why_none(results: Results) -> str:
    rest = len(results.rows) - results.unsettled - len(results.failed)
    counts = [
        f"{number} {what}"
        for number, what in (
            (results.unsettled, "not settled yet"),
            (len(results.failed), "failed for good"),
            (rest, "finished without a score"),
        )
        if number
    ]
    why = f"of {many(len(results.rows), 'row')}, {' and '.join(counts)}"
    if not rest or results.spec is None:
        return why
    if results.spec.scorer:
        return f"{why}: its scorer gave no valid score (`holdfast report {results.run}` says why)"
    return f"{why}: it has no scorer, and its rollout gives no reward; add --scorer to its command"


def _first_names(clusters: Mapping[str, object]) -> str:
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
        name: (_format_value(name, first.get(name)), _format_value(name, second.get(name)))
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


def _changed_code(a: RunSpec | None, b: RunSpec | None) -> dict[str, str]:
    """Returns a text about the rollout's code and one about the scorer's code, if the code differs
    and is known."""
    if a is None or b is None:
        return {}
    texts = {}
    for field in ("rollout", "scorer"):
        names = [getattr(spec, field).partition("@")[0] or "none" for spec in (a, b)]
        changes = a.changed_code(b, code="its code", fields=[field])
        if changes:
            same = names[0] == names[1]
            texts[field] = "; ".join(changes) if same else " → ".join(names)
    return texts


def _format_value(name: str, value: object) -> str:
    return str(value) if name not in _DIGESTS or value else "none"


# --- for people


def format_comparison(comparison: Comparison, *, changes: bool = True) -> str:
    """Returns the comparison as text. With `changes`, the text ends with the tasks whose scores
    changed most."""
    pairs = comparison.paired
    lines = [_format_head(comparison), f"  {_format_difference(pairs)}", f"  {_format_wins(pairs)}"]
    for name, side, only in (("A", comparison.a, pairs.only_a), ("B", comparison.b, pairs.only_b)):
        lines += _format_left_out(name, side, only)
    lines += _format_changed(comparison)
    lines += _differences_of_specs(comparison)
    if changes:
        lines += _format_changes(comparison)
    return "\n".join(lines)


def _format_head(comparison: Comparison) -> str:
    pairs, metric = (
        comparison.paired,
        "" if comparison.metric == "score" else f" ({comparison.metric})",
    )
    text = (
        f"A {comparison.a.run}: {number_text(pairs.mean_a)}   "
        f"B {comparison.b.run}: {number_text(pairs.mean_b)}"
        f"{metric}   on {many(pairs.tasks, 'task')} of both"
    )
    return escape_text(text)


def _format_difference(pairs: Paired) -> str:
    line = f"B - A: {number_text(pairs.difference, sign='+')}"
    if pairs.standard_error is None or pairs.interval is None:
        return f"{line} (one task: its error is unknown)"
    low, high = pairs.interval
    ends = ", ".join(number_text(end, sign="+") for end in (low, high))
    line += f" ± {number_text(pairs.standard_error)} (SE), 95% [{ends}]"
    if pairs.p_value is None:
        return f"{line}; no task differs"
    sign, how = ("=", "sign") if pairs.p_is_exact else ("≈", "random sign")
    return f"{line}, p {sign} {pairs.p_value:.3g} ({how} flips)"


def _format_wins(pairs: Paired) -> str:
    line = f"B is higher on {pairs.wins}, lower on {pairs.losses}, the same on {pairs.ties}"
    return line if pairs.sign_p_value is None else f"{line}; sign test p = {pairs.sign_p_value:.3g}"


def _format_left_out(name: str, side: Side, only: tuple[str, ...]) -> list[str]:
    lines = []
    if only:
        tasks = many(len(only), "task")
        lines.append(f"  left out: {tasks} that only {name} has: {_listed(only)}")
    missing = side.rows - side.scored
    if missing:
        lines.append(
            f"  {name} lacks {many(missing, 'score')} of {many(side.rows, 'row')} "
            f"({side.failed} failed for good, {side.unsettled} not settled)"
        )
    return lines


def _listed(tasks: Sequence[str]) -> str:
    names = ", ".join(escape_text(task) for task in tasks[:MAX_LISTED])
    return f"{names}, …" if len(tasks) > MAX_LISTED else names


def _format_changed(comparison: Comparison) -> list[str]:
    if not comparison.changed:
        return []
    names = _listed(comparison.changed)
    what = (
        f"{many(len(comparison.changed), 'task')} with other messages or another ground truth in B"
    )
    if comparison.by_id:
        return [f"  compared by id alone: {what}: {names}"]
    return [f"  left out: {what}: {names} (--by-id compares them)"]


def _differences_of_specs(comparison: Comparison) -> list[str]:
    if not comparison.spec_differences:
        return []
    lines = ["  the runs differ in"]
    readable = {"tasks": "other tasks, contents or order", **comparison.changed_code}
    for name, (a, b) in comparison.spec_differences.items():
        lines.append(f"    {name}: {escape_text(readable.get(name, f'{a} → {b}'))}")
    return lines


def biggest_changes(pairs: Paired) -> list[tuple[str, float]]:
    moved = [(name, change) for name, change in pairs.by_task.items() if change]
    return sorted(moved, key=lambda item: (-abs(item[1]), item[0]))


def _format_changes(comparison: Comparison) -> list[str]:
    moved = biggest_changes(comparison.paired)
    if not moved:
        return []
    lines = ["  biggest changes"]
    lines += [
        f"    {number_text(change, sign='+')}  "
        + escape_text(f"{name}  {comparison.prompts.get(name, '')}".rstrip())
        for name, change in moved[: 2 * MAX_LISTED]
    ]
    if len(moved) > 2 * MAX_LISTED:
        lines.append(f"    … and {many(len(moved) - 2 * MAX_LISTED, 'other task')} that changed")
    return lines
