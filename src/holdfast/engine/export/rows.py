"""Builds EvaluationRows, which hold a run's data in the shape that eval-protocol writes.

If all samples of a task are single replies to one prompt, the task has one row. Otherwise there is
one row for each trajectory and branch.

A row contains only data that is the same in a disturbed and an undisturbed run. So it has no times
(`created_at` is left out), no generated ids, and no attempt numbers. A failure is a status with its
root error, never a score (I5): a failed sample is absent from every list. If the rollout did
nothing, the row keeps the status, tokens and usage that it came with. A row describes only its own
conversation. Replies of a simulated user are not turns of the row.
"""

from collections.abc import Mapping, Sequence

from holdfast.engine.export.prices import Prices
from holdfast.engine.export.row_messages import (
    HELD,
    held_of,
    mapping_in,
    messages_of,
    messages_of_task,
    returned_of,
)
from holdfast.engine.export.row_status import FINISHED, internal, status_fields
from holdfast.engine.export.row_tokens import (
    NAMES,
    Branch,
    Fields,
    branches_of,
    flat_fields,
    group_fields,
)
from holdfast.records.conversation import main_end, main_turns
from holdfast.records.encoding.tokens import count
from holdfast.records.run import RunSpec
from holdfast.records.samples.sample import has_tokens
from holdfast.records.samples.summary import last_failure
from holdfast.records.step import Generated
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING, Usage
from holdfast.records.view import TrajectoryView
from holdfast.rollout.processors.processor import completion_params_of

_OWN_PLACES = frozenset(
    {
        *("input_metadata", "rollout_status", "evaluation_result", "execution_metadata"),
        *("created_at", "eval_metadata", "pid", HELD),
        *("completion_params", "dataset_info", "session_data", "extra"),
    }
)
"""Keys of a task's metadata that do not become columns of its row, because they have their own
place in the row or are left out."""
_METRIC: Fields = {"is_score_valid": True, "reason": "", "data": {}}


def evaluation_rows(
    spec: RunSpec,
    group: Sequence[TrajectoryView],
    *,
    turn_traces: bool = False,
    apart: bool = False,
    prices: Prices | None = None,
) -> list[Fields]:
    """Returns the rows of one settled group, in (sample, branch) order.

    With `turn_traces`, each turn has its whole prompt, so trajectories never share a row. With
    `apart`, each trajectory has rows of its own, even if its group is dropped from training;
    `turn_traces` then has no effect. With `prices`, each row has the cost of its usage.
    """
    rows = _rows(spec, group, turn_traces=turn_traces, apart=apart)
    return rows if prices is None else [_with_cost(row, spec, prices) for row in rows]


def _with_cost(row: Fields, spec: RunSpec, prices: Prices) -> Fields:
    """Returns the row with its costs under eval-protocol's names.

    The costs are computed from the row's token counts, which do not show which tokens were cached.
    """
    execution = mapping_in(row, "execution_metadata")
    usage, price = mapping_in(execution, "usage"), prices.price_of(spec.model)
    if price is None or not usage or "cost_metrics" in execution:
        return row
    sent, sampled = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(sent, int) or not isinstance(sampled, int):
        return row  # A processor of rows wrote this row.
    costs = price.of(Usage(prompt_tokens=sent)), price.of(Usage(completion_tokens=sampled))
    names = ("input_cost", "output_cost", "total_cost_dollar")
    metrics = dict(zip(names, (*costs, sum(costs)), strict=True))
    return {**row, "execution_metadata": {**execution, "cost_metrics": metrics}}


def _rows(
    spec: RunSpec, group: Sequence[TrajectoryView], *, turn_traces: bool, apart: bool
) -> list[Fields]:
    if apart:
        return [row for view in group for row in _trajectory_rows(spec, view, turn_traces=False)]
    valid = [view for view in group if view.status.is_outcome]
    if valid and not spec.group.keeps(len(valid), of=len(group)):
        return [_dropped_row(spec, group, len(valid))]
    if not valid or (_share_prompt(valid) and not turn_traces):
        return [_group_row(spec, group, valid)]
    rows: list[Fields] = []
    for view in group:
        rows += _trajectory_rows(spec, view, turn_traces=turn_traces)
    return rows


def _share_prompt(valid: Sequence[TrajectoryView]) -> bool:
    """Returns whether all trajectories are single replies to the same prompt. Such trajectories can
    share the prompt's ids."""
    steps = [view.history.generations for view in valid]
    if any(len(own) != 1 for own in steps):
        return False
    prompts = {(own[0].delta, bool(own[0].ids)) for own in steps}
    trained = all(own[0].trainable or not own[0].ids for own in steps)
    first = steps[0][0].added
    return len(prompts) == 1 and trained and all(own[0].added == first for own in steps)


def row_fields(spec: RunSpec, view: TrajectoryView) -> Fields:
    """Returns the row of one trajectory's main conversation, independent of the rest of its group.

    The row has no `extra` fields, because they take longer to build than the rest. `extra_fields`
    returns them.
    """
    steps = main_turns(view.history)
    return _row(
        spec,
        view,
        messages=messages_of(view),
        status=status_fields(view),
        params=completion_params_of(steps[0].model, steps[0].sampling) if steps else {},
        execution=_execution(steps, _usage_of(steps)),
        extra={},
        returned=returned_of(view),
    )


def is_untouched(view: TrajectoryView) -> bool:
    """Returns whether the rollout completed without a step and without a reward. The row of such a
    trajectory is exported as it was read."""
    if view.status is not Status.COMPLETED or view.history.steps:
        return False
    return view.history.finished is not None and view.history.finished.reward is None


def extra_fields(view: TrajectoryView) -> Fields:
    """Returns the `extra` fields for the row that `row_fields` makes."""
    if is_untouched(view):
        return _inherited(view)
    last, branch = main_end(view.history), None
    if last is not None and has_tokens(view.history):
        branches = branches_of(view)
        ending = (candidate for candidate in branches if candidate.turns[-1].step.path == last.path)
        branch = next(ending, branches[0] if branches else None)
    returned = mapping_in(mapping_in(returned_of(view), "execution_metadata"), "extra")
    return _inherited(view) | dict(returned) | flat_fields(view, branch, turn_traces=False)


def _usage_of(steps: Sequence[Generated]) -> Fields | None:
    if not steps or not steps[-1].ids:
        return _stated_usage(steps)
    last = steps[-1]
    sampled = sum(count(step.ids) for step in steps)
    return _usage(last.keep + count(last.delta) + count(last.ids) - sampled, sampled)


def _stated_usage(steps: Sequence[Generated]) -> Fields | None:
    """Returns the sum of the usages that an engine without token ids reported for the turns.
    Returns None if the engine reported no usage.

    Each prompt counts in full, because nobody knows which tokens repeat.
    """
    used = sum((step.counted for step in steps), NOTHING)
    if used == NOTHING:
        return None
    details = {"reasoning_tokens": used.reasoning_tokens}
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.total_tokens,
        **({"completion_tokens_details": details} if used.reasoning_tokens else {}),
    }


# --- the layouts


def _group_row(
    spec: RunSpec, group: Sequence[TrajectoryView], valid: Sequence[TrajectoryView]
) -> Fields:
    failed = [_failed_sample(view) for view in group if not view.status.is_outcome]
    if not valid:
        return _failed_row(spec, group[0], failed)
    view = valid[0]
    steps = [member.history.generations[0] for member in valid]
    extra = group_fields(valid) | ({"failed_samples": failed} if failed else {})
    prompt, sampled = count(steps[0].delta), sum(count(step.ids) for step in steps)
    return _row(
        spec,
        view,
        messages=messages_of(view),
        status=status_fields(view),
        params=completion_params_of(steps[0].model, steps[0].sampling),
        execution=_execution(
            steps[:1], _usage(prompt, sampled) if steps[0].ids else _stated_usage(steps)
        ),
        extra=extra,
    )


def _trajectory_rows(spec: RunSpec, view: TrajectoryView, *, turn_traces: bool) -> list[Fields]:
    if not view.status.is_outcome:
        return [_failed_row(spec, view, [_failed_sample(view)])]
    trained = bool(view.history.generations) and has_tokens(view.history)
    branches: list[Branch | None] = [*branches_of(view)] if trained else [None]
    return [_flat_row(spec, view, branch, turn_traces=turn_traces) for branch in branches]


def _flat_row(
    spec: RunSpec, view: TrajectoryView, branch: Branch | None, *, turn_traces: bool
) -> Fields:
    steps = [turn.step for turn in branch.turns] if branch else main_turns(view.history)
    usage = _stated_usage(steps) if branch is None else None
    if branch is not None:
        sampled = sum(turn.end - turn.start for turn in branch.turns)
        usage = _usage(len(branch.sample.token_ids) - sampled, sampled)
    index = branch.sample.branch if branch else 0
    return _row(
        spec,
        view,
        name=f"{view.key}#{index}" if index else str(view.key),
        messages=messages_of(view, steps[-1] if branch else None),
        status=status_fields(view),
        params=completion_params_of(steps[0].model, steps[0].sampling) if steps else {},
        execution=_execution(steps, usage),
        extra={} if is_untouched(view) else flat_fields(view, branch, turn_traces=turn_traces),
        # Tokens belong to the sampled conversation, which a processor may have changed.
        returned=returned_of(view, but="messages" if branch else ""),
    )


def _failed_row(spec: RunSpec, view: TrajectoryView, failed: list[Fields]) -> Fields:
    return _row(
        spec,
        view,
        messages=messages_of_task(view.task),
        status=status_fields(view),
        extra={"failed_samples": failed},
    )


def _dropped_row(spec: RunSpec, group: Sequence[TrajectoryView], valid: int) -> Fields:
    """Returns the row of a dropped group. The row exists, but has nothing to train on."""
    failed = [_failed_sample(view) for view in group if not view.status.is_outcome]
    message = f"the group was dropped: {valid} of {len(group)} samples are valid"
    return _row(
        spec,
        group[0],
        messages=messages_of_task(group[0].task),
        status=internal(message, {"shortfall": spec.group.shortfall.value}),
        extra={"failed_samples": failed},
    )


# --- what every row has


def _row(
    spec: RunSpec,
    view: TrajectoryView,
    *,
    messages: list[Fields],
    status: Fields,
    extra: Fields,
    name: str | None = None,
    params: Mapping[str, object] | None = None,
    execution: Fields | None = None,
    returned: Fields | None = None,
) -> Fields:
    task, untouched = view.task, is_untouched(view)
    is_judged = untouched or status["code"] == FINISHED
    fields = _present(
        **_columns(task),
        messages=messages,
        tools=view.tools or None,
        input_metadata=_input_metadata(spec, view, params or {}),
        rollout_status=(mapping_in(task.metadata, "rollout_status") if untouched else {}) or status,
        ground_truth=task.ground_truth,
        evaluation_result=_evaluation(view) if is_judged else None,
        execution_metadata={
            **(mapping_in(task.metadata, "execution_metadata") if untouched else {}),
            "rollout_id": name or str(view.key),
            "run_id": view.key.run,
            **(execution or {}),
            "extra": _inherited(view) | extra,
        },
    )
    return _merge_returned(fields, returned) if returned and view.status.is_outcome else fields


def _merge_returned(fields: Fields, returned: Fields) -> Fields:
    """Returns the row that a processor of rows returned, completed with fields from the records.
    The returned fields win, except for the row's id and for recorded fields of `extra`."""
    metadata, recorded = (
        mapping_in(fields, "input_metadata"),
        mapping_in(fields, "execution_metadata"),
    )
    execution = mapping_in(returned, "execution_metadata")
    extra = {**mapping_in(execution, "extra"), **mapping_in(recorded, "extra")}
    return {
        **returned,
        **{name: value for name, value in fields.items() if name not in returned},
        "input_metadata": {**mapping_in(returned, "input_metadata"), "row_id": metadata["row_id"]},
        "execution_metadata": {**recorded, **execution, "extra": extra},
    }


def _present(**fields: object) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


def _input_metadata(spec: RunSpec, view: TrajectoryView, recorded: Mapping[str, object]) -> Fields:
    """Returns the task's own metadata, with the parameters that the engine received, if they are
    recorded."""
    task, untouched = view.task, is_untouched(view)
    own = mapping_in(task.metadata, "input_metadata")
    params = {
        **({} if untouched else completion_params_of(spec.model, spec.sampling)),
        **mapping_in(own, "completion_params"),
        **mapping_in(task.metadata, "completion_params"),
        **recorded,
        **({} if untouched else {"n": spec.samples}),
    }
    params.pop("api_key", None)
    infos = {
        name: task.metadata[name]
        for name in ("dataset_info", "session_data")
        if isinstance(task.metadata.get(name), Mapping)
    }
    return {**own, **infos, "row_id": task.id, "completion_params": params}


def _columns(task: Task) -> Fields:
    """Returns the columns of the data set that a row has no field for."""
    held = held_of(task)
    merged = held.get("merged")
    aside = {*merged, *_OWN_PLACES} if isinstance(merged, list) else _OWN_PLACES
    columns = {name: value for name, value in task.metadata.items() if name not in aside}
    return columns | dict(mapping_in(held, "columns"))


def _inherited(view: TrajectoryView) -> Fields:
    """Returns the fields that the task's own row had in `extra`. Fields that Holdfast fills itself
    are left out, unless the rollout did nothing (`is_untouched`)."""
    brought = {
        **mapping_in(mapping_in(view.task.metadata, "execution_metadata"), "extra"),
        **mapping_in(view.task.metadata, "extra"),
    }
    ours = frozenset() if is_untouched(view) else NAMES
    return {name: value for name, value in brought.items() if name not in ours}


def _execution(steps: Sequence[Generated], usage: Fields | None) -> Fields:
    return _present(
        usage=usage,
        finish_reason=steps[-1].finish_reason if steps else None,
        tool_call_count=sum(len(step.message.tool_calls) for step in steps) if steps else None,
    )


def _usage(prompt: int, sampled: int) -> Fields:
    """Returns the usage fields. `prompt` and `sampled` count each token once, even if several
    prompts repeat it."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _evaluation(view: TrajectoryView) -> Fields | None:
    """Returns the evaluation of a row, or None without a score. A missing score is not a zero."""
    scored = view.history.scored if view.status.is_outcome else None
    if view.reward is None and scored is None:
        return None
    metrics, reasons = (scored.metrics, scored.reasons) if scored else ({}, {})
    rest = scored.reasons_of_reward if scored else []
    result = _present(
        score=view.reward or 0.0,
        is_score_valid=view.reward is not None,
        reason="\n".join(rest) or None,
        metrics={
            name: {**_METRIC, "score": value, "reason": reasons.get(name, "")}
            for name, value in metrics.items()
        },
    )
    return result | (_stated(scored.details) if scored else {})


def _stated(details: Mapping[str, object]) -> Fields:
    """Returns the scorer's own details. A metric gets the default value of each field that it
    lacks."""
    metrics = {
        name: {**_METRIC, **metric} if isinstance(metric, Mapping) else metric
        for name, metric in mapping_in(details, "metrics").items()
    }
    return {**details, **({"metrics": metrics} if metrics else {})}


def _failed_sample(view: TrajectoryView) -> Fields:
    failure = last_failure(view.history)
    return {
        "sample": view.key.sample,
        "cause": failure.cause.value if failure else "",
        # The root without numbers: a port or a duration does not belong to the data.
        "message": failure.root if failure else view.reason,
    }
