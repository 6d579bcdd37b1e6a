"""Rows and the engine's own nouns: row to task, trajectory to row, result to score.

Nothing is lost on the way: what a task has no field for rides in its metadata, and comes back. What
a row holds only because it was made just now (a time, generated ids) is no part of its task, or
the same data set would be another one each time it is read.
"""

from typing import Any, cast

import msgspec
from pydantic_core import PydanticSerializationError

from holdfast.engine.export.row_messages import HELD, message_fields
from holdfast.engine.export.rows import extra_fields, is_untouched, row_fields
from holdfast.engine.scoring.scorer import Score
from holdfast.evaluation.rows.names import invocation_id
from holdfast.evaluation.rows.result import EvaluateResult
from holdfast.evaluation.rows.row import EvaluationRow, InputMetadata
from holdfast.evaluation.rows.status import Open
from holdfast.records import message as records
from holdfast.records.errors import UsageError
from holdfast.records.run import RunSpec
from holdfast.records.task import MAX_ID, Task, own
from holdfast.records.view import TrajectoryView

Fields = dict[str, Any]

_CLASHING = frozenset({"metadata", "completion_params", "dataset_info", "session_data", "extra"})
"""Columns of data sets whose names mean something else in a task's metadata."""
FUNCTION = "function"
"""The role of what a function answered, before there were tools."""
ROLES = (*(role.value for role in records.Role), FUNCTION)
_GIVEN = ("evaluation_result", "created_at", "eval_metadata", "pid")
"""What a finished row has from its data set, unless it was replaced since."""


# --- a row of a data set as a task


def task_of(row: EvaluationRow, *, where: str = "") -> Task:
    """The row as a task. Its id is the row's, or "" until it has one."""
    said = [message.model_dump(mode="json", exclude_unset=True) for message in row.messages]
    messages = tuple(
        _message(one, where=f"{where}messages[{at}]") for at, one in enumerate(_current(said))
    )
    held: Fields = {}
    lost = {
        str(at): one
        for at, (one, message) in enumerate(zip(said, messages, strict=True))
        if not _is_whole(one, message)
    }
    if lost:
        held["messages"] = lost
    metadata = _given_fields(row) | _columns(row, held)
    if held:
        metadata[HELD] = held
    task = Task(
        id=_checked_id(row, where),
        messages=messages,
        tools=tuple(row.tools or ()),
        ground_truth=_plain(row.ground_truth),
        metadata=metadata,
    )
    try:
        msgspec.msgpack.encode(task)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{where}it holds what cannot be recorded: {error}") from error
    return task


def row_from(task: Task) -> EvaluationRow:
    """The row that the task was made from."""
    held = cast("Fields", task.metadata.get(HELD) or {})
    whole = held.get("messages") or {}
    merged = held.get("merged") or ()
    columns = {k: v for k, v in task.metadata.items() if k != HELD and k not in merged}
    fields: Fields = {**columns, **(held.get("columns") or {})}
    fields["messages"] = [
        whole.get(str(at)) or message_fields(message) for at, message in enumerate(task.messages)
    ]
    if task.tools:
        fields["tools"] = list(task.tools)
    if task.ground_truth is not None:
        fields["ground_truth"] = task.ground_truth
    row = EvaluationRow.model_validate(fields)
    row.input_metadata.row_id = task.id or None
    return row


def _checked_id(row: EvaluationRow, where: str) -> str:
    name = row.input_metadata.row_id or ""
    if len(name) > MAX_ID:
        raise UsageError(f"{where}row_id has {len(name)} characters; at most {MAX_ID} are allowed")
    return name


def _current(messages: list[Fields]) -> list[Fields]:
    """The messages with tool calls where they have the function calls that chat APIs had before: a
    `function_call`, answered by the role `function`."""
    current, call = [], None
    for at, message in enumerate(messages):
        if (function := message.get("function_call")) and not message.get("tool_calls"):
            call = f"call_{at}"
            made = {"id": call, "type": "function", "function": function}
            message = {**message, "tool_calls": [made]}
        if message.get("role") == FUNCTION:
            message = {**message, "role": "tool", "tool_call_id": call}
        current.append(message)
    return current


def _message(fields: Fields, *, where: str) -> records.Message:
    known = {name: value for name, value in fields.items() if value is not None}
    if fields.get("content", "") is None:
        known["content"] = None
    if "reasoning_content" in known:
        known["reasoning"] = known["reasoning_content"]
    try:
        return msgspec.convert(known, records.Message)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error


def _is_whole(fields: Fields, message: records.Message) -> bool:
    """Whether the message says all that the fields say."""
    return message_fields(message) == fields


def _given_fields(row: EvaluationRow) -> Fields:
    """The fields that a task has no place for, where they were given."""
    found: Fields = {}
    if asked := _asked(row.input_metadata):
        found["input_metadata"] = asked
    if not _is_blank(row.execution_metadata):
        found["execution_metadata"] = row.execution_metadata.model_dump(
            mode="json", exclude_unset=True
        )
    filled = row.model_fields_set
    given = [name for name in _GIVEN if name in filled]
    if "rollout_status" in filled and not row.rollout_status.is_running():
        given.append("rollout_status")
    if not given:
        return found
    dumped = row.model_dump(mode="json", include=set(given), exclude_unset=True)
    return found | {name: value for name, value in dumped.items() if value is not None}


def _asked(metadata: InputMetadata) -> Fields:
    # Looked at one by one: what was put into the dict itself does not count as set.
    params = metadata.completion_params
    if not params and _is_blank(metadata, but="row_id"):
        return {}
    asked = metadata.model_dump(mode="json", exclude_unset=True, exclude={"row_id"})
    return asked | {"completion_params": _plain(params)} if params else asked


def _is_blank(model: Open, *, but: str = "") -> bool:
    """Whether nothing was set. Most rows have much of that, and a dump costs more than the rest."""
    return not model.model_extra and model.model_fields_set <= {but}


def _columns(row: EvaluationRow, held: Fields) -> Fields:
    if not row.model_extra:
        return {}
    columns: Fields = _plain(row.model_extra)
    clashing = {name: columns.pop(name) for name in [*columns] if name in _CLASHING | {HELD}}
    if clashing:
        held["columns"] = clashing
    own = clashing.get("metadata")
    if isinstance(own, dict):
        # Rollouts find it where a task file would have put it.
        merged = {name: value for name, value in own.items() if name not in columns}
        held["merged"] = sorted(merged)
        return merged | columns
    return columns


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_dumped)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a row of a data set holds what is no JSON: {error}") from error


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if hasattr(value, "item"):
        return value.item()  # A number of NumPy's.
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


# --- a finished trajectory as a row


def row_of(view: TrajectoryView, spec: RunSpec) -> EvaluationRow:
    """The finished row, as a scorer sees it. Its own copy: scorers may change it as they like.

    `execution_metadata.extra`, with the token data, is made only if somebody looks at it.
    """
    view = TrajectoryView(view.key, own(view.task), view.history)
    given = {name: view.task.metadata[name] for name in _GIVEN if name in view.task.metadata}
    fields: Fields = given | row_fields(spec, view)
    if view.history.scored is not None:
        fields["evaluation_result"] = _copied(fields.get("evaluation_result"))
    fields["execution_metadata"] = _execution(view, fields["execution_metadata"])
    row = EvaluationRow.model_validate(fields)
    row.execution_metadata.make_extra_later(lambda: extra_fields(view))
    return row


def _execution(view: TrajectoryView, ran: Fields) -> Fields:
    """What is recorded, over what came with the data set."""
    given = view.task.metadata.get("execution_metadata")
    told = given if isinstance(given, dict) else {}
    names = {"invocation_id": invocation_id(), "experiment_id": view.key.run}
    return names | told | ran | _duration(view) | {"extra": None}


def _duration(view: TrajectoryView) -> Fields:
    """Of the last attempt; of one that did nothing, there is none."""
    history = view.history
    if not history.attempts or history.finished is None or is_untouched(view):
        return {}
    return {"rollout_duration_seconds": history.finished.at - history.attempts[-1].at}


def _copied(value: Any) -> Any:
    """Of its own: what a scorer changes is nobody else's."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


# --- a row that a processor of rows gave back

_OF_THE_RECORDS: Any = {
    "created_at": True,
    "pid": True,
    "eval_metadata": True,
    "rollout_status": True,
    "input_metadata": {"row_id"},
    "execution_metadata": {
        *("invocation_id", "experiment_id", "rollout_id", "run_id", "duration_seconds"),
        *("rollout_duration_seconds", "eval_duration_seconds", "experiment_duration_seconds"),
    },
}
"""What the records know better, and clocks."""


def returned_fields(row: EvaluationRow) -> Fields:
    """All that such a row says, as it is recorded."""
    try:
        fields: Fields = row.model_dump(mode="json", exclude_none=True, exclude=_OF_THE_RECORDS)
    except PydanticSerializationError as error:
        raise UsageError(f"the row that was given back is no JSON: {error}") from error
    if row.rollout_status.is_finished() and row.rollout_status.details:
        fields["rollout_status"] = row.rollout_status.model_dump(mode="json")
    return fields


# --- what a scorer said


def score_of(result: EvaluateResult) -> Score:
    """The result as the engine records it, whole; one that is not valid has no reward."""
    reasons = {name: metric.reason for name, metric in result.metrics.items() if metric.reason}
    if result.reason:
        reasons["reason"] = result.reason
    if result.error:
        reasons["error"] = result.error
    return Score(
        reward=result.score if result.is_score_valid else None,
        metrics={name: one.score for name, one in result.metrics.items() if one.is_score_valid},
        reasons=reasons,
        details=result.model_dump(mode="json", exclude_unset=True),
    )
