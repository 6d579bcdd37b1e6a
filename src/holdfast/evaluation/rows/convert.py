"""Converts between eval-protocol's rows and the engine's records: a row to a task, a trajectory to
a row, a result to a score.

Nothing is lost: fields that a task does not have are kept in its metadata and come back. Times and
generated ids of a new row are not part of its task. Otherwise, the same data set would give
different tasks each time it is read.
"""

from copy import deepcopy
from typing import Any, cast

import msgspec
from pydantic_core import PydanticSerializationError

from holdfast.engine.export.row_messages import HELD
from holdfast.engine.export.rows import extra_fields, is_untouched, row_fields
from holdfast.evaluation.rows.names import invocation_id
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
"""The role of a function's result in the API before tools."""
ROLES = (*(role.value for role in records.Role), FUNCTION)
_DATASET_FIELDS = ("evaluation_result", "created_at", "eval_metadata", "pid")
"""Fields that a finished row keeps from its data set, unless they were replaced in the meantime."""


# --- a row of a data set as a task


def task_of(row: EvaluationRow, *, where: str = "") -> Task:
    """Returns the row as a task, with the row's id or "". Raises `UsageError`, which names `where`,
    for a value that cannot be recorded."""
    dumped = [message.model_dump(mode="json", exclude_unset=True) for message in row.messages]
    messages = tuple(
        _parse_message(fields, where=f"{where}messages[{at}]")
        for at, fields in enumerate(_with_tool_calls(dumped))
    )
    held: Fields = {}
    lost = {
        str(at): fields
        for at, (fields, message) in enumerate(zip(dumped, messages, strict=True))
        if message.to_dict() != fields  # The message lacks some of the fields.
    }
    if lost:
        held["messages"] = lost
    metadata = _extra_row_fields(row) | _columns(row, held)
    if held:
        metadata[HELD] = held
    task = Task(
        id=_checked_id(row, where),
        messages=messages,
        tools=tuple(row.tools or ()),
        ground_truth=_to_json(row.ground_truth),
        metadata=metadata,
    )
    try:
        msgspec.msgpack.encode(task)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{where}a value cannot be recorded: {error}") from error
    return task


def row_from(task: Task) -> EvaluationRow:
    """Returns the row from which the task was made."""
    held = cast("Fields", task.metadata.get(HELD) or {})
    whole = held.get("messages") or {}
    merged = held.get("merged") or ()
    columns = {k: v for k, v in task.metadata.items() if k != HELD and k not in merged}
    fields: Fields = {**columns, **(held.get("columns") or {})}
    fields["messages"] = [
        whole.get(str(at)) or message.to_dict() for at, message in enumerate(task.messages)
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


def _with_tool_calls(messages: list[Fields]) -> list[Fields]:
    """Converts messages to the form of tool calls. In the older form, a call is a `function_call`
    and its result has the role `function`."""
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


def _parse_message(fields: Fields, *, where: str) -> records.Message:
    records.check_content(fields, where)
    known = {name: value for name, value in fields.items() if value is not None}
    if fields.get("content", "") is None:
        known["content"] = None
    if "reasoning_content" in known:
        known["reasoning"] = known["reasoning_content"]
    try:
        return msgspec.convert(known, records.Message)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error


def _extra_row_fields(row: EvaluationRow) -> Fields:
    """Returns the fields that were set in the row and that a task does not have."""
    extra: Fields = {}
    if metadata := _input_metadata(row.input_metadata):
        extra["input_metadata"] = metadata
    if not _is_blank(row.execution_metadata):
        extra["execution_metadata"] = row.execution_metadata.model_dump(
            mode="json", exclude_unset=True
        )
    filled = row.model_fields_set
    names = [name for name in _DATASET_FIELDS if name in filled]
    if "rollout_status" in filled and not row.rollout_status.is_running():
        names.append("rollout_status")
    if not names:
        return extra
    dumped = row.model_dump(mode="json", include=set(names), exclude_unset=True)
    return extra | {name: value for name, value in dumped.items() if value is not None}


def _input_metadata(metadata: InputMetadata) -> Fields:
    # `exclude_unset` misses keys that were added to the dict after the row was made.
    params = metadata.completion_params
    if not params and _is_blank(metadata, but="row_id"):
        return {}
    fields = metadata.model_dump(mode="json", exclude_unset=True, exclude={"row_id"})
    return fields | {"completion_params": _to_json(params)} if params else fields


def _is_blank(model: Open, *, but: str = "") -> bool:
    """Returns whether no field was set. The check is cheaper than a dump, and most rows are
    blank."""
    return not model.model_extra and model.model_fields_set <= {but}


def _columns(row: EvaluationRow, held: Fields) -> Fields:
    if not row.model_extra:
        return {}
    columns: Fields = _to_json(row.model_extra)
    clashing = {name: columns.pop(name) for name in [*columns] if name in _CLASHING | {HELD}}
    if clashing:
        held["columns"] = clashing
    nested = clashing.get("metadata")
    if isinstance(nested, dict):
        # As in a task file, the keys of this object are the task's metadata.
        merged = {name: value for name, value in nested.items() if name not in columns}
        held["merged"] = sorted(merged)
        return merged | columns
    return columns


def _to_json(value: Any) -> Any:
    """Returns the value in JSON's types. Raises `UsageError` if that is impossible."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a row of a data set is not JSON: {error}") from error


def _encode(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if hasattr(value, "item"):
        return value.item()  # A NumPy number.
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


# --- a finished trajectory as a row


def row_of(view: TrajectoryView, spec: RunSpec) -> EvaluationRow:
    """Returns the finished row for a scorer, as a copy that the scorer may change.

    `execution_metadata.extra`, with the token data, is made when it is first read.
    """
    view = TrajectoryView(view.key, own(view.task), view.history)
    loaded = {
        name: view.task.metadata[name] for name in _DATASET_FIELDS if name in view.task.metadata
    }
    fields: Fields = loaded | row_fields(spec, view)
    if view.history.scored is not None:
        fields["evaluation_result"] = deepcopy(fields.get("evaluation_result"))
    fields["execution_metadata"] = _execution_metadata(view, fields["execution_metadata"])
    row = EvaluationRow.model_validate(fields)
    row.execution_metadata.make_extra_later(lambda: extra_fields(view))
    return row


def _execution_metadata(view: TrajectoryView, ran: Fields) -> Fields:
    """Returns the recorded fields, completed by the fields of the data set."""
    metadata = view.task.metadata.get("execution_metadata")
    dataset_fields = metadata if isinstance(metadata, dict) else {}
    names = {"invocation_id": invocation_id(), "experiment_id": view.key.run}
    return names | dataset_fields | ran | _duration(view) | {"extra": None}


def _duration(view: TrajectoryView) -> Fields:
    """Returns the seconds of the last attempt, or an empty dict if the attempt did nothing."""
    history = view.history
    if not history.attempts or history.finished is None or is_untouched(view):
        return {}
    return {"rollout_duration_seconds": history.finished.at - history.attempts[-1].at}


# --- a row returned by a processor of rows

_RECORDED_FIELDS: Any = {
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
"""Fields that are not taken from a returned row: times, and fields that the records have anyway."""


def returned_fields(row: EvaluationRow) -> Fields:
    """Returns the fields of a processor's returned row that are recorded. Raises `UsageError` if
    the row cannot be written as JSON."""
    try:
        fields: Fields = row.model_dump(mode="json", exclude_none=True, exclude=_RECORDED_FIELDS)
    except PydanticSerializationError as error:
        raise UsageError(f"the returned row is not JSON: {error}") from error
    if row.rollout_status.is_finished() and row.rollout_status.details:
        fields["rollout_status"] = row.rollout_status.model_dump(mode="json")
    return fields
