"""Exports a run's data row by row: samples, EvaluationRows, trajectories, failures.

Rows come in (task, sample, branch) order, not in the order in which they were made. `samples` and
`rows` contain only data that is the same in a disturbed and an undisturbed run. So they have no
times and no attempt numbers. Two exports can be compared byte for byte.
"""

from collections.abc import AsyncIterator
from enum import StrEnum
from itertools import groupby
from typing import Any

import msgspec

from holdfast.engine.export.prices import Prices
from holdfast.journal.rows import history_of_row
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.encoding.tokens import unpack_logprobs
from holdfast.records.errors import JournalCorrupt, NotTrainable
from holdfast.records.group import valid_members
from holdfast.records.history import History, added_messages
from holdfast.records.run import Run
from holdfast.records.samples.logprobs import (
    PROCESSING,
    Accepted,
    LogprobsMode,
    distribution_of,
    mode_with,
)
from holdfast.records.samples.sample import Sample, placeholder, samples_of
from holdfast.records.sampling import changed_parameters
from holdfast.records.step import Generated
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView

Row = dict[str, object]
_OF_ENVIRONMENTS = ("action", "observation", "reward", "done", "truncated", "error")


class What(StrEnum):
    SAMPLES = "samples"
    ROWS = "rows"
    TRAJECTORIES = "trajectories"
    FAILURES = "failures"


async def rows(
    journal: Journal,
    run: Run,
    what: What,
    *,
    fixed_groups: bool = False,
    turn_traces: bool = False,
    apart: bool = False,
    logprobs: Accepted = Accepted.PROCESSED,
    trains_shared: bool = False,
    prices: Prices | None = None,
) -> AsyncIterator[Row]:
    """Yields the rows of the kind `what`.

    With `apart`, the kind `ROWS` has a row for each sample, even if the samples of a group could
    share one row. With `prices`, rows and trajectories contain costs.
    """
    for task, group in await groups_of(journal, run):
        if what is What.SAMPLES:
            async for sample in group_samples(
                journal,
                run,
                group,
                fixed=fixed_groups,
                logprobs=logprobs,
                trains_shared=trains_shared,
            ):
                yield msgspec.to_builtins(sample)
            continue
        if what is What.ROWS:
            from holdfast.engine.export.rows import evaluation_rows  # The import takes time.

            # An unsettled group is left out, because its numbers would still change.
            if all(member.settled for member in group):
                views = [await _view(journal, member, task) for member in group]
                for row in evaluation_rows(
                    run.spec, views, turn_traces=turn_traces, apart=apart, prices=prices
                ):
                    yield row
            continue
        for member in group:
            view = await _view(journal, member, task)
            if what is What.TRAJECTORIES:
                yield trajectory_row(view, prices)
            else:
                for failure in failure_rows(view):
                    yield failure


async def groups_of(journal: Journal, run: Run) -> list[tuple[Task, list[TrajectoryRow]]]:
    """Returns the tasks that are still in the run, each with its trajectories."""
    tasks = await journal.tasks(run)
    listed = [row for row in await journal.trajectories(run) if not row.resting]
    groups = groupby(listed, key=lambda row: row.ordinal)
    return [(tasks[ordinal], list(members)) for ordinal, members in groups]


async def history_of(journal: Journal, row: TrajectoryRow) -> History:
    """Returns the recorded history of a trajectory.

    Raises `JournalCorrupt` with the trajectory's name if a record is bad, or if the trajectory is
    settled and its row contradicts its log. No record is skipped.
    """
    try:
        return history_of_row(row, await journal.history(row.id))
    except JournalCorrupt as error:
        raise JournalCorrupt(f"{row.key} is corrupt: {error}") from error


async def group_samples(
    journal: Journal,
    run: Run,
    group: list[TrajectoryRow],
    *,
    fixed: bool,
    logprobs: Accepted = Accepted.PROCESSED,
    trains_shared: bool = False,
) -> AsyncIterator[Sample]:
    """Yields the samples of a group if the whole group is settled and kept. Otherwise yields
    nothing, because a part of a group would have another baseline than the whole group.

    With `fixed`, yields a placeholder for each member that failed. In a group of forks, all members
    share the tokens before the fork. With `trains_shared`, these tokens are trained once, in the
    first outcome.

    Raises `NotTrainable` for logprobs that are not accepted.
    """
    if not all(member.settled for member in group):
        return
    # Reads every member, because a wrong status would leave one out or take one in.
    histories = [await history_of(journal, member) for member in group]
    if not is_kept(group, run):
        return
    for member, history in zip(group, histories, strict=True):
        name, sample = member.key.task, member.key.sample
        if member.status.is_outcome:
            trains, trains_shared = trains_shared, False
            for exported in samples_of(
                history, task=name, group=name, sample=sample, trains_shared=trains
            ):
                if logprobs is Accepted.PROCESSED and exported.logprobs_mode.is_known_to_differ:
                    raise NotTrainable(_describe_refusal(exported, history))
                yield exported
        elif fixed:
            yield placeholder(task=name, group=name, sample=sample)


def is_kept(group: list[TrajectoryRow], run: Run) -> bool:
    """Returns whether all members are settled, and the run's group policy keeps a group with this
    number of valid members."""
    if not all(member.settled for member in group):
        return False
    valid = valid_members([member.status for member in group])
    return bool(valid) and run.spec.group.keeps(valid, of=len(group))


def _describe_refusal(sample: Sample, history: History) -> str:
    step = next(
        step
        for step in history.generations
        if step.trainable and mode_with(step.logprobs_mode, step.sampling).is_known_to_differ
    )
    sampling, mode = step.sampling, step.logprobs_mode
    what = f"its logprobs are {mode}, and it was sampled at {distribution_of(sampling)}"
    remedy = f"sample from an engine that gives processed ones ({PROCESSING})"
    if not sampling.temperature:
        what, remedy = "greedy replies have logprobs of temperature 1", "sample at temperature 1"
    elif mode is LogprobsMode.TEMPERED:
        remedy = "sample uncut and unbent (top_p 1, no top_k, min_p, penalty or logit_bias)"
    return (
        f"task {sample.task!r}, sample {sample.sample}: {what}: they are not of the distribution "
        f"that was sampled from; {remedy}, or ask for them as they are (--logprobs raw)"
    )


async def _view(journal: Journal, member: TrajectoryRow, task: Task) -> TrajectoryView:
    return TrajectoryView(member.key, task, await history_of(journal, member))


def trajectory_row(view: TrajectoryView, prices: Prices | None = None) -> Row:
    history = view.history
    cost = prices.cost_of(history.used) if prices is not None else None
    return {
        "trajectory": str(view.key),
        "task": view.key.task,
        "sample": view.key.sample,
        "status": view.status.name,
        "reason": view.reason,
        "reward": history.reward,
        "metrics": dict(history.scored.metrics) if history.scored else {},
        "reasons": dict(history.scored.reasons) if history.scored else {},
        "messages": [message_row(message) for message in view.messages],
        "turns": [_turn(history, view.task, step) for step in history.generations],
        "tools": [
            {
                "step": use.intent.path,
                "name": use.intent.name,
                "arguments": use.intent.arguments,
                "contract": use.intent.contract.value,
                "content": use.result.content if use.result else None,
                "error": use.result.error if use.result else None,
                "reward": use.result.reward if use.result else None,
            }
            for use in view.tool_uses
        ],
        "environment_steps": [
            {"step": step.path, **{name: getattr(step, name) for name in _OF_ENVIRONMENTS}}
            for step in history.environment_steps
        ],
        "sampled_tokens": history.sampled_tokens,
        "attempts": len(history.attempts),
        "failures": len(history.failures),
        "refills": history.life,
        "forks": [
            {"step": fork.path, "reason": fork.reason, "difference": fork.difference}
            for fork in history.forks
        ],
        "prefix_breaks": history.prefix_breaks,
        "refused_calls": [
            {
                "attempt": refusal.attempt,
                "wire": refusal.wire,
                "status": refusal.status,
                "message": refusal.message,
                "answered": bool(refusal.answer),
            }
            for refusal in history.refusals.values()
        ],
        "usage": {model: usage.as_fields() for model, usage in history.used.items()},
        "cost": None if cost is None or cost.unpriced else cost.amount,
    }


def message_row(message: object) -> Row:
    """Returns a message as a dict. It always has `content`, which may be empty."""
    row: dict[str, Any] = msgspec.to_builtins(message)
    if calls := row.get("tool_calls"):
        row["tool_calls"] = [{"id": call["id"], "type": "function", **call} for call in calls]
    return row if "content" in row else {"role": row["role"], "content": "", **row}


def _turn(history: History, task: Task, step: Generated) -> Row:
    return {
        "step": step.path,
        "prompt": [message_row(message) for message in added_messages(history, task, step)],
        "reply": message_row(step.message),
        "finish_reason": step.finish_reason,
        "prompt_tokens": step.counted.prompt_tokens,
        "sampled_tokens": step.counted.completion_tokens,
        "mean_logprob": _mean_logprob(step),
        "versions": [msgspec.to_builtins(span) for span in step.versions],
        "model": step.model,
        "tries": step.tries,
        "seconds": step.seconds,
        "prefix_break": step.prefix_break,
        "logprobs_mode": mode_with(step.logprobs_mode, step.sampling).value,
        "usage": None if step.usage is None else step.usage.as_fields(),
        "sampling": changed_parameters(step.sampling),
    }


def _mean_logprob(step: Generated) -> float | None:
    """Returns the mean logprob of a generation.

    Returns None if the engine gave no logprobs, because a mean of 0 would look like certainty.
    """
    logprobs = unpack_logprobs(step.logprobs)
    return sum(logprobs) / len(logprobs) if logprobs else None


def failure_rows(view: TrajectoryView) -> list[Row]:
    failures = [*view.history.failures, *view.history.scoring_failures]
    return [
        {
            "trajectory": str(view.key),
            "task": view.key.task,
            "sample": view.key.sample,
            "status": view.status.name,
            **msgspec.structs.asdict(failure),
        }
        for failure in failures
    ]
