"""Writes Inspect's log: one `.eval` file for a run, which `inspect view` and Inspect Scout open.

Each trajectory becomes one sample of Inspect. Its epoch is the trajectory's sample number, counted
from 1. The file is a zip archive with a header, one JSON file for each trajectory, and their
summaries. The metadata of a reply's message has its token ids, logprobs and weight versions.
"""

import base64
import statistics
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import msgspec

from holdfast.convert.provenance import Fields
from holdfast.records.conversation import referenced
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.history import History
from holdfast.records.message import Message, Role, ToolCall
from holdfast.records.run import Run
from holdfast.records.samples.summary import final_failure
from holdfast.records.step import Generated
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING, Usage
from holdfast.records.view import TrajectoryView
from holdfast.version import installed_version

ENDING = ".eval"
_SAMPLES = "samples/"
_STOPS = {"length": "max_tokens"}
_KNOWN_STOPS = ("stop", "max_tokens", "tool_calls", "content_filter")
_ROLES = {Role.DEVELOPER: "system"}
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every entry, so that equal data give equal bytes."""


def log_name(run: Run) -> str:
    """Returns the file's name in Inspect's pattern. It consists of the time when the run began, the
    run's name, and an id."""
    began = datetime.fromtimestamp(run.created, UTC).strftime("%Y-%m-%dT%H-%M-%S+00-00")
    name = "".join(each if each.isalnum() else "-" for each in run.spec.name)
    return f"{began}_{name}_{_id_of(run)}{ENDING}"


def inspect_sample(view: TrajectoryView) -> Fields:
    """Returns the trajectory as a sample of Inspect."""
    conversation = referenced(view.history, view.task)
    first = next((n for n, each in enumerate(conversation) if _is_reply(each.reference)), None)
    messages = [_message(view.history, *each) for each in conversation]
    replies = [each for each in view.history.generations if each.trainable or not each.ids]
    sample: Fields = {
        "id": view.key.task,
        "epoch": view.key.sample + 1,
        "input": messages[:first],
        "target": "" if view.task.ground_truth is None else _text(view.task.ground_truth),
        "messages": messages,
        "output": _output(replies[-1]) if replies else {"model": "", "choices": []},
        "scores": _scores(view),
        "metadata": {"status": view.status.name, "reason": view.reason, **view.task.metadata},
        "model_usage": _usage_by_model(view.history),
        "uuid": _digest(str(view.key)),
        **_times(view.history),
    }
    failure = final_failure(view.history)
    if failure is not None:
        sample["error"] = {
            "message": failure.text,
            "traceback": failure.traceback,
            "traceback_ansi": failure.traceback,
        }
    if view.status is Status.TRUNCATED:
        sample["limit"] = {"type": "custom", "limit": 0, "reason": view.reason}
    return sample


class InspectLog:
    """Writes the log. Writes each sample when it is added, and the header when the log is
    closed."""

    def __init__(self, path: Path, run: Run):
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._run = run
        self._summaries: list[Fields] = []

    def write(self, sample: Fields) -> None:
        self._add(f"{_SAMPLES}{sample['id']}_epoch_{sample['epoch']}.json", sample)
        names = ("id", "epoch", "input", "target", "scores", "metadata", "model_usage", "uuid")
        times = ("started_at", "completed_at", "total_time")
        summary = {name: sample[name] for name in (*names, *times) if name in sample}
        summary["completed"] = "error" not in sample
        if isinstance(error := sample.get("error"), Mapping):
            summary["error"] = error["message"]
        self._summaries.append(summary)

    def close(self) -> None:
        header = _header(self._run, self._summaries)
        start = {name: header[name] for name in ("version", "eval", "plan")}
        self._add("_journal/start.json", start)
        self._add("summaries.json", self._summaries)
        self._add("header.json", header)
        self._archive.close()

    def _add(self, name: str, content: object) -> None:
        entry = zipfile.ZipInfo(name, _FIRST_TIME)
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._archive.writestr(entry, msgspec.json.encode(content))


def has_all_samples(new: Path, old: Path) -> bool:
    """Returns whether every sample of the log `old` is in `new`, unchanged. If `old` is not a log,
    the result is False."""
    if not zipfile.is_zipfile(old):
        return False
    return _digests(old) <= _digests(new)


def _digests(path: Path) -> set[tuple[str, int, int]]:
    with zipfile.ZipFile(path) as archive:
        return {
            (entry.filename, entry.CRC, entry.file_size)
            for entry in archive.infolist()
            if entry.filename.startswith(_SAMPLES)
        }


# --- the header


def _header(run: Run, summaries: list[Fields]) -> Fields:
    began, spec = _iso(run.created), run.spec
    ended = max(
        (str(each["completed_at"]) for each in summaries if "completed_at" in each), default=began
    )
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": _id_of(run),
            "run_id": _id_of(run),
            "task_id": _digest(spec.name),
            "created": began,
            "task": spec.name,
            "dataset": {
                "name": spec.series or spec.name,
                "samples": len({str(summary["id"]) for summary in summaries}),
            },
            "model": spec.model,
            "config": {"epochs": spec.samples},
            "packages": {"holdfast-rollouts": installed_version()},
            "tags": list(spec.tags),
            "scorers": [{"name": spec.scorer.partition("@")[0]}] if spec.scorer else [],
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": _results(summaries),
        "stats": {"started_at": began, "completed_at": ended, "model_usage": _total(summaries)},
    }


def _results(summaries: list[Fields]) -> Fields:
    """Returns the mean of each score over the trajectories that have it. With several tasks, also
    returns the standard error over the means of the tasks."""
    values: dict[str, dict[object, list[float]]] = {}
    for summary in summaries:
        for name, score in _mapping(summary["scores"]).items():
            by_task = values.setdefault(name, {})
            by_task.setdefault(summary["id"], []).append(score["value"])
    return {
        "total_samples": len(summaries),
        "completed_samples": sum(summary["completed"] is True for summary in summaries),
        "scores": [_mean_of(name, by_task) for name, by_task in values.items()],
    }


def _mean_of(name: str, by_task: dict[object, list[float]]) -> Fields:
    every = [value for values in by_task.values() for value in values]
    metrics: Fields = {"mean": {"name": "mean", "value": statistics.fmean(every)}}
    if len(by_task) > 1:
        means = [statistics.fmean(values) for values in by_task.values()]
        error = statistics.stdev(means) / len(means) ** 0.5
        metrics["stderr"] = {"name": "stderr", "value": error}
    return {"name": name, "scorer": name, "scored_samples": len(every), "metrics": metrics}


def _total(summaries: list[Fields]) -> dict[str, dict[str, float]]:
    total: dict[str, dict[str, float]] = {}
    for summary in summaries:
        for model, usage in _mapping(summary["model_usage"]).items():
            sums = total.get(model, dict.fromkeys(usage, 0))
            total[model] = {name: sums[name] + number for name, number in usage.items()}
    return total


# --- a trajectory


def _message(history: History, message: Message, reference: str) -> Fields:
    fields: Fields = {"role": _ROLES.get(message.role, message.role.value)}
    fields["content"] = _content(message)
    if message.role is Role.TOOL:
        fields["tool_call_id"] = message.tool_call_id
        fields["function"] = message.name
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    step = history.steps.get(reference.partition(":")[2])
    if _is_reply(reference) and isinstance(step, Generated):
        fields |= {"source": "generate", "model": step.model, "metadata": _of_reply(step)}
    return {name: value for name, value in fields.items() if value is not None}


def _of_reply(step: Generated) -> Fields:
    metadata: Fields = {"step": step.path, "finish_reason": step.finish_reason}
    if step.ids:
        metadata["token_ids"] = unpack_ids(step.ids).tolist()
        metadata["logprobs"] = unpack_logprobs(step.logprobs).tolist()
        metadata["versions"] = [msgspec.to_builtins(span) for span in step.versions]
    return metadata


def _content(message: Message) -> object:
    parts: list[Fields] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "reasoning": message.reasoning})
    if not parts and not message.images:
        return message.text
    written = message.content if isinstance(message.content, list) else [_text_part(message.text)]
    for part in written:
        image = Message(message.role, [part]).images
        parts.append({"type": "image", "image": image[0]} if image else part)
    return parts


def _text_part(text: str) -> Fields:
    return {"type": "text", "text": text}


def _call(call: ToolCall) -> Fields:
    fields: Fields = {"id": call.id, "function": call.name, "type": "function"}
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError as error:
        return fields | {"arguments": {"raw": call.arguments}, "parse_error": str(error)}
    return fields | {"arguments": arguments if isinstance(arguments, dict) else {"": arguments}}


def _output(step: Generated) -> Fields:
    stop = _STOPS.get(step.finish_reason, step.finish_reason)
    return {
        "model": step.model,
        "choices": [
            {
                "message": {"role": "assistant", "content": step.message.text},
                "stop_reason": stop if stop in _KNOWN_STOPS else "unknown",
            }
        ],
        "usage": _usage(step.counted),
    }


def _scores(view: TrajectoryView) -> Fields:
    """Returns the reward and each metric of the scorer. Without a valid score, there is no
    reward."""
    scored, scores = view.history.scored, {}
    if view.reward is not None:
        why = "\n".join(scored.reasons_of_reward) if scored else ""
        scores["reward"] = {"value": view.reward, "answer": view.reply, "explanation": why or None}
    for name, value in (scored.metrics if scored else {}).items():
        scores[name] = {"value": value, "explanation": scored.reasons.get(name) if scored else None}
    return dict(scores)


def _times(history: History) -> Fields:
    """Returns when the first attempt began, and when the trajectory was finished or scored."""
    if not history.attempts or history.finished is None:
        return {}
    began, ended = history.attempts[0].at, (history.scored or history.finished).at
    times = {"started_at": _iso(began), "completed_at": _iso(ended)}
    return times | {"total_time": max(ended - began, 0.0)}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _usage_by_model(history: History) -> dict[str, Fields]:
    used: dict[str, Usage] = {}
    for step in history.generations:
        used[step.model] = used.get(step.model, NOTHING) + step.counted
    return {model: _usage(usage) for model, usage in used.items()}


def _usage(usage: Usage) -> Fields:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _is_reply(reference: str) -> bool:
    return reference.startswith("reply:")


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _mapping(value: object) -> Mapping[str, dict[str, float]]:
    assert isinstance(value, Mapping), "it was made here"
    return value


def _id_of(run: Run) -> str:
    return _digest(f"{run.spec.name}\0{run.created}")


def _digest(text: str) -> str:
    digest = blake2b(text.encode(), digest_size=12).digest()
    return base64.b32encode(digest).decode().rstrip("=").lower()
