"""verifiers' results: `results.jsonl` beside `metadata.json`, and, of later versions,
`traces.jsonl`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.evaluation.data.files import FileRecord
from holdfast.evaluation.stats.results import RowResult
from holdfast.records.trajectory import Status
from holdfast.rollout.episodes.environment import as_number

Run = tuple[str, str, list[RowResult]]
_NO_METRICS = frozenset({"example_id", "reward", "generation_ms", "scoring_ms", "total_ms", "id"})


def read_verifiers(path: Path, lines: list[FileRecord]) -> Run:
    """The environment's name, the model and a result for each rollout of each example."""
    told = _beside(path, "metadata.json")
    seen: dict[str, int] = {}
    rows = []
    for number, line in enumerate(lines):
        fields = line.fields
        task = str(fields.get("example_id", number))
        seen[task] = seen.get(task, -1) + 1
        rows.append(_rollout(fields, task, seen[task]))
    return str(told.get("env_id", "")), str(told.get("model", "")), rows


def _rollout(fields: Mapping[str, Any], task: str, sample: int) -> RowResult:
    error = fields.get("error")
    given = fields.get("metrics")
    metrics = given if isinstance(given, Mapping) else fields
    truncated = bool(fields.get("is_truncated"))
    said, used = fields.get("completion"), fields.get("token_usage")
    return RowResult(
        task=task,
        sample=sample,
        status=_status(failed=bool(error), truncated=truncated),
        reason=str(fields.get("stop_condition") or "") if truncated else "",
        score=None if error else as_number(fields["reward"]),
        metrics={
            name: float(value)
            for name, value in metrics.items()
            if name not in _NO_METRICS and isinstance(value, int | float)
        },
        root=_error(error),
        turns=_turns(said),
        sampled_tokens=int(used.get("output_tokens") or 0) if isinstance(used, Mapping) else 0,
        seconds=_seconds(fields),
    )


def _seconds(fields: Mapping[str, Any]) -> float:
    """Once they were milliseconds, beside the reward."""
    timing = fields.get("timing")
    told = timing if isinstance(timing, Mapping) else fields
    spent = told.get("total")
    return float(told.get("total_ms") or 0.0) / 1000 if spent is None else float(spent)


def _turns(said: object) -> int:
    if not isinstance(said, list):
        return 1
    return sum(isinstance(one, Mapping) and one.get("role") == "assistant" for one in said)


def read_episodes(path: Path, lines: list[FileRecord]) -> Run:
    """Of an episode with several agents, rewards are summed up, as its trainer does."""
    config = _beside(path, "configs/resolved/eval.json")
    seen: dict[str, int] = {}
    rows, name = [], ""
    for line in lines:
        fields = line.fields
        asked = fields["task"]
        data = asked.get("data") or {}
        task = str(asked.get("key") or data.get("name") or data.get("idx") or asked.get("hash"))
        seen[task] = seen.get(task, -1) + 1
        name = name or str((fields.get("env") or {}).get("id", ""))
        rows.append(_episode(fields, task, seen[task]))
    return name, str(config.get("model", "")), rows


def _episode(fields: Mapping[str, Any], task: str, sample: int) -> RowResult:
    traces = fields.get("traces") or []
    errors = [*(fields.get("errors") or ()), *(e for one in traces for e in one.get("errors", ()))]
    rewards = [r for one in traces for r in one.get("rewards", {}).values() if r is not None]
    failed = not fields.get("ok", False)
    return RowResult(
        task=task,
        sample=sample,
        status=_status(failed=failed, truncated=False),
        score=None
        if failed
        else sum(float(one["score"]) * float(one.get("weight", 1.0)) for one in rewards),
        metrics={
            name: float(value)
            for one in traces
            for name, value in one.get("metrics", {}).items()
            if value is not None
        },
        root=_error(errors[-1]) if failed and errors else "",
        turns=sum(len(one.get("calls", ())) for one in traces),
        sampled_tokens=int(fields.get("num_output_tokens") or 0),
    )


def _status(*, failed: bool, truncated: bool) -> str:
    if failed:
        return Status.FAILED.name
    return Status.TRUNCATED.name if truncated else Status.COMPLETED.name


def _error(error: object) -> str:
    if isinstance(error, Mapping):
        kind, message = error.get("type") or error.get("error"), error.get("message")
        return ": ".join(str(one) for one in (kind, message) if one)
    return str(error or "")


def _beside(path: Path, name: str) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode((path.parent / name).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}  # Only names are read from it.
    return found if isinstance(found, dict) else {}
