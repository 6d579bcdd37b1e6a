"""Reads Inspect's logs: `.eval` (a zip of JSON) and `.json`.

If a run was interrupted, the summaries of its samples are read from the journal inside its log.
"""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.evaluation.stats.results import RowResult
from holdfast.extras import needed_by
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import Status
from holdfast.rollout.episodes.environment import as_number

Log = tuple[str, str, list[RowResult]]
_ZSTD = 93
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "no": 0.0}
"""Inspect's numbers for letters and words."""


def read_inspect(path: Path, log: Mapping[str, Any] | None = None) -> Log:
    """Returns the task's name, the model and a result for each sample of each epoch.

    The score comes from the log's headline scorer, or else from the first scorer. All values become
    metrics.
    """
    header, samples = _archive(path) if log is None else (log, log["samples"])
    run = header["eval"]
    headline = (header.get("results") or {}).get("headline") or {}
    rows = [_row(sample, str(headline.get("scorer", ""))) for sample in samples or ()]
    return str(run.get("task", "")), str(run.get("model", "")), rows


def _row(sample: Mapping[str, Any], headline: str) -> RowResult:
    error, limit = sample.get("error"), sample.get("limit")
    values = _values(sample.get("scores") or {})
    main = [value for (scorer, _), value in values.items() if scorer == headline]
    scores = main or list(values.values())
    message = error.get("message", "") if isinstance(error, Mapping) else str(error or "")
    status = Status.FAILED if error else Status.TRUNCATED if limit else Status.COMPLETED
    return RowResult(
        task=str(sample["id"]),
        sample=int(sample.get("epoch", 1)) - 1,
        status=status.name,
        reason=str(limit.get("type", "") if isinstance(limit, Mapping) else limit or ""),
        score=scores[0] if scores and not error else None,
        metrics={
            f"{scorer}/{part}" if part else scorer: value
            for (scorer, part), value in values.items()
        },
        root=message,
        turns=int(sample.get("turn_count") or 0),
        sampled_tokens=sum(
            int(usage.get("output_tokens") or 0)
            for usage in (sample.get("model_usage") or {}).values()
        ),
        seconds=float(sample.get("total_time") or 0.0),
    )


def _values(scores: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Returns each numeric value by its scorer and its part. The part is "" for a value without
    parts."""
    values: dict[tuple[str, str], float] = {}
    for scorer, score in scores.items():
        value = score.get("value") if isinstance(score, Mapping) else score
        parts = value if isinstance(value, Mapping) else {"": value}
        for part, item in parts.items():
            number = _GRADES.get(item) if isinstance(item, str) else as_number(item)
            if number is not None:
                values[scorer, str(part)] = number
    return values


# --- the archive


def _archive(path: Path) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            start = "header.json" if "header.json" in names else "_journal/start.json"
            header = _member(path, archive, start)
            return header, _summaries(path, archive, names)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UsageError(f"{path} is not an Inspect log: {error}") from error


def _summaries(path: Path, archive: zipfile.ZipFile, names: set[str]) -> list[Mapping[str, Any]]:
    if "summaries.json" in names:
        summaries: list[Mapping[str, Any]] = _member(path, archive, "summaries.json")
        return summaries
    parts = [name for name in names if name.startswith("_journal/summaries/")]
    parts.sort(key=lambda name: int(Path(name).stem))
    return [summary for part in parts for summary in _member(path, archive, part)]


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> Any:
    info = archive.getinfo(name)
    body = _zstd(path, info) if info.compress_type == _ZSTD else archive.read(name)
    return msgspec.json.decode(body)


def _zstd(path: Path, info: zipfile.ZipInfo) -> bytes:
    """Reads a zstd member of a zip file, which `zipfile` cannot read before Python 3.14."""
    with needed_by(f"{path} (not if `inspect log convert --to json` wrote it)", extra="parquet"):
        import pyarrow
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        packed = file.read(info.compress_size)
    body: bytes = pyarrow.decompress(packed, info.file_size, codec="zstd", asbytes=True)
    return body
