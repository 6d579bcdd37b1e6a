"""Reads verifiers' results: `results.jsonl` with `metadata.json`, or, in later versions,
`traces.jsonl`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.evaluation.stats.results import RowResult
from holdfast.records.trajectory import Status
from holdfast.rollout.episodes.environment import as_number
from holdfast.tasks.files import FileRecord

Run = tuple[str, str, list[RowResult]]
_NOT_METRICS = frozenset({"example_id", "reward", "generation_ms", "scoring_ms", "total_ms", "id"})


def read_verifiers(path: Path, lines: list[FileRecord]) -> Run:
    """Returns the environment's name, the model and a result for each rollout of each example."""
    metadata = _read_beside(path, "metadata.json")
    seen: dict[str, int] = {}
    rows = []
    for number, line in enumerate(lines):
        fields = line.fields
        task = str(fields.get("example_id", number))
        seen[task] = seen.get(task, -1) + 1
        rows.append(_rollout_result(fields, task, seen[task]))
    return str(metadata.get("env_id", "")), str(metadata.get("model", "")), rows


def _rollout_result(fields: Mapping[str, Any], task: str, sample: int) -> RowResult:
    error = fields.get("error")
    own_metrics = fields.get("metrics")
    metrics = own_metrics if isinstance(own_metrics, Mapping) else fields
    truncated = bool(fields.get("is_truncated"))
    completion, usage = fields.get("completion"), fields.get("token_usage")
    return RowResult(
        task=task,
        sample=sample,
        status=_status(failed=bool(error), truncated=truncated),
        reason=str(fields.get("stop_condition") or "") if truncated else "",
        score=None if error else as_number(fields["reward"]),
        metrics={
            name: float(value)
            for name, value in metrics.items()
            if name not in _NOT_METRICS and isinstance(value, int | float)
        },
        root=_format_error(error),
        turns=_turns(completion),
        sampled_tokens=int(usage.get("output_tokens") or 0) if isinstance(usage, Mapping) else 0,
        seconds=_seconds(fields),
    )


def _seconds(fields: Mapping[str, Any]) -> float:
    """Returns the seconds of a rollout. Older versions of verifiers record milliseconds, next to
    the reward."""
    timing = fields.get("timing")
    source = timing if isinstance(timing, Mapping) else fields
    spent = source.get("total")
    return float(source.get("total_ms") or 0.0) / 1000 if spent is None else float(spent)


def _turns(completion: object) -> int:
    if not isinstance(completion, list):
        return 1
    return sum(
        isinstance(message, Mapping) and message.get("role") == "assistant"
        for message in completion
    )


def read_episodes(path: Path, lines: list[FileRecord]) -> Run:
    """Returns one result per episode. The rewards of several agents are added, as in verifiers'
    trainer."""
    config = _read_beside(path, "configs/resolved/eval.json")
    seen: dict[str, int] = {}
    rows, name = [], ""
    for line in lines:
        fields = line.fields
        task_fields = fields["task"]
        data = task_fields.get("data") or {}
        task = str(
            task_fields.get("key") or data.get("name") or data.get("idx") or task_fields.get("hash")
        )
        seen[task] = seen.get(task, -1) + 1
        name = name or str((fields.get("env") or {}).get("id", ""))
        rows.append(_episode_result(fields, task, seen[task]))
    return name, str(config.get("model", "")), rows


def _episode_result(fields: Mapping[str, Any], task: str, sample: int) -> RowResult:
    traces = fields.get("traces") or []
    errors = [
        *(fields.get("errors") or ()),
        *(e for trace in traces for e in trace.get("errors", ())),
    ]
    rewards = [r for trace in traces for r in trace.get("rewards", {}).values() if r is not None]
    failed = not fields.get("ok", False)
    return RowResult(
        task=task,
        sample=sample,
        status=_status(failed=failed, truncated=False),
        score=None
        if failed
        else sum(float(reward["score"]) * float(reward.get("weight", 1.0)) for reward in rewards),
        metrics={
            name: float(value)
            for trace in traces
            for name, value in trace.get("metrics", {}).items()
            if value is not None
        },
        root=_format_error(errors[-1]) if failed and errors else "",
        turns=sum(len(trace.get("calls", ())) for trace in traces),
        sampled_tokens=int(fields.get("num_output_tokens") or 0),
    )


def _status(*, failed: bool, truncated: bool) -> str:
    if failed:
        return Status.FAILED.name
    return Status.TRUNCATED.name if truncated else Status.COMPLETED.name


def _format_error(error: object) -> str:
    if isinstance(error, Mapping):
        kind, message = error.get("type") or error.get("error"), error.get("message")
        return ": ".join(str(part) for part in (kind, message) if part)
    return str(error or "")


def _read_beside(path: Path, name: str) -> Mapping[str, Any]:
    try:
        metadata = msgspec.json.decode((path.parent / name).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}  # Only names are read from this file.
    return metadata if isinstance(metadata, dict) else {}
