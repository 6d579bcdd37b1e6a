"""Reads results of other tools, for comparison: Inspect logs, verifiers results, evaluation rows.

Only scores, metrics, statuses and the like are read, as a comparison needs no more. A row without a
score stays without one, and a failed row counts as failed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.evaluation.importers.inspect import read_inspect
from holdfast.evaluation.importers.verifiers import read_episodes, read_verifiers
from holdfast.evaluation.stats.results import Results, RowResult
from holdfast.records.errors import UsageError
from holdfast.tasks.files import FileRecord, read

_FORMATS = (
    "an Inspect log (.eval or .json), a verifiers run (results.jsonl or traces.jsonl), or a JSONL "
    "file of evaluation rows"
)


def results_from(path: Path | str) -> Results:
    """Returns the results in a file, or in a tool's folder. Raises `UsageError` for other
    formats."""
    path = _file(Path(path))
    if path.suffix == ".eval":
        return _results(path, *read_inspect(path))
    lines = list(read(path))
    if not lines:
        raise UsageError(f"{path} is empty; it wants to be {_FORMATS}")
    return _results(path, *_reader(path, lines[0].fields)(path, lines))


Reader = Callable[[Path, list[FileRecord]], tuple[str, str, list[RowResult]]]
"""Returns the run's name, its model and its rows."""


def _file(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path} does not exist; it wants to be {_FORMATS}")
    if not path.is_dir():
        return path
    for name in ("traces.jsonl", "results.jsonl"):
        if (path / name).is_file():
            return path / name
    # Inspect also writes other kinds of JSON files beside its logs.
    logs = sorted(path.glob("*.eval")) or sorted(path.glob("*.json"))
    if len(logs) == 1:
        return logs[0]
    raise UsageError(f"folder {path} holds {len(logs) or 'no'} results; name {_FORMATS}")


def _reader(path: Path, first: Mapping[str, Any]) -> Reader:
    if {"eval", "samples"} <= first.keys():
        return lambda path, lines: read_inspect(path, lines[0].fields)
    if {"traces", "task"} <= first.keys():
        return read_episodes
    if "reward" in first and ("completion" in first or "example_id" in first):
        return read_verifiers
    if {"trajectory", "turns"} <= first.keys():
        raise UsageError(
            f"{path} has trajectories: name their run, or export its rows (--what rows)"
        )
    if "messages" in first:
        # The module imports pydantic, which the other formats do not need.
        from holdfast.evaluation.importers.rows import read_rows

        return read_rows
    raise UsageError(f"{path} has an unknown format: it has to be {_FORMATS}")


def _results(path: Path, name: str, model: str, rows: list[RowResult]) -> Results:
    ordered = list(_in_order(rows))
    samples = max((row.sample + 1 for row in ordered), default=1)
    return Results(
        run=name or path.stem,
        rows=tuple(ordered),
        model=model,
        samples=samples,
        created=path.stat().st_mtime,
        source=str(path),
    )


def _in_order(rows: Iterable[RowResult]) -> Iterator[RowResult]:
    """Yields the rows by task, in the order of the tasks' first rows, then by sample."""
    tasks: dict[str, list[RowResult]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    for members in tasks.values():
        yield from sorted(members, key=lambda row: row.sample)
