"""Reads evaluation rows as results, including rows from `holdfast export --what rows`.

A row of such an export may hold several samples of its task side by side
(`execution_metadata.extra`: `samples`, `rewards`, `failed_samples`), or be one branch of a
trajectory. Each trajectory is one result, with its sample number in the run. A row of another tool
is one sample, whose number is its place among the rows of its task.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from holdfast.evaluation.data.dataset import as_row
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.evaluation.stats.results import RowResult
from holdfast.records.trajectory import Status
from holdfast.records.usage import Usage
from holdfast.tasks.files import FileRecord

Extra = Mapping[str, Any]


def read_rows(path: Path, lines: list[FileRecord]) -> tuple[str, str, list[RowResult]]:
    """Returns the file's name, its model and its rows."""
    taken: set[tuple[str, int]] = set()
    row_results: list[RowResult] = []
    model = ""
    for position, line in enumerate(lines):
        row = as_row(line)
        model = model or str(row.input_metadata.completion_params.get("model", ""))
        task = row.input_metadata.row_id or str(position)
        row_results += [_numbered(result, taken) for result in _results_of(row, task)]
    return path.stem, model, row_results


def _numbered(result: RowResult, taken: set[tuple[str, int]]) -> RowResult:
    """Returns the result with a sample number that no other result of its task has. This is its own
    number or, if that is `taken`, the next free one. Rows from several files may have the same
    numbers."""
    sample = result.sample
    while (result.task, sample) in taken:
        sample += 1
    taken.add((result.task, sample))
    return structs.replace(result, sample=sample)


def _results_of(row: EvaluationRow, task: str) -> Iterator[RowResult]:
    extra = row.execution_metadata.extra or {}
    if extra.get("branch"):
        return  # This is another branch of a trajectory that already has a row.
    numbers, failed = _numbers(extra), _failed_samples(extra, task)
    if row.rollout_status.is_error():
        yield from failed or [_only(row, task, 0)]
        return
    if len(numbers) > 1:
        yield from (_packed(row, extra, task, at) for at in range(len(numbers)))
    else:
        yield _only(row, task, numbers[0] if numbers else 0)
    yield from failed


def _numbers(extra: Extra) -> list[int]:
    """Returns the numbers of the samples in the row. Returns [] if the row does not list them, or
    does not list one reward for each."""
    numbers, rewards = extra.get("samples"), extra.get("rewards")
    if not isinstance(numbers, list) or not all(isinstance(each, int) for each in numbers):
        return []
    return numbers if isinstance(rewards, list) and len(rewards) == len(numbers) else []


def _failed_samples(extra: Extra, task: str) -> list[RowResult]:
    failed = extra.get("failed_samples")
    return [
        RowResult(
            task=task,
            sample=each["sample"],
            status=Status.FAILED.name,
            cause=str(each.get("cause", "")),
            root=str(each.get("message", "")),
        )
        for each in (failed if isinstance(failed, list) else ())
        if isinstance(each, Mapping) and isinstance(each.get("sample"), int)
    ]


def _packed(row: EvaluationRow, extra: Extra, task: str, at: int) -> RowResult:
    """Returns the result of the sample at index `at`, in a row with several samples of one reply
    each. The result has no metrics, because the row has only the metrics of its first sample."""
    samples, usage = extra["samples"], row.execution_metadata.usage
    sampled = Usage(completion_tokens=usage.completion_tokens if usage else 0)
    ids = _entry(extra.get("completion_ids"), at)
    reward = extra["rewards"][at]
    return RowResult(
        task=task,
        sample=samples[at],
        status=_status(extra, at),
        score=None if reward is None else float(reward),
        turns=1,
        sampled_tokens=len(ids)
        if isinstance(ids, list)
        else sampled.share(at, of=len(samples)).completion_tokens,
    )


def _only(row: EvaluationRow, task: str, sample: int) -> RowResult:
    evaluation, execution = row.evaluation_result, row.execution_metadata
    failed = row.rollout_status.is_error()
    is_valid = evaluation is not None and evaluation.is_score_valid and not failed
    metrics = evaluation.metrics if evaluation is not None else {}
    return RowResult(
        task=task,
        sample=sample,
        status=Status.FAILED.name if failed else _status(execution.extra or {}, 0),
        score=evaluation.score if evaluation is not None and is_valid else None,
        metrics={name: metric.score for name, metric in metrics.items()},
        root=row.rollout_status.message if failed else "",
        turns=len(row.get_assistant_messages()),
        sampled_tokens=execution.usage.completion_tokens if execution.usage else 0,
        seconds=execution.rollout_duration_seconds or 0.0,
    )


def _status(extra: Extra, at: int) -> str:
    truncated = _entry(extra.get("truncated"), at) is True
    return (Status.TRUNCATED if truncated else Status.COMPLETED).name


def _entry(values: "Sequence[Any] | Any", at: int) -> Any:
    return values[at] if isinstance(values, list) and at < len(values) else None
