"""Says which column of a data set is which field of a task: `{"prompt": "question"}`."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.records.task import FIELDS, PlainRow
from holdfast.tasks.files import FileRecord

_PROMPTS = frozenset({"prompt", "messages"})
Columns = Mapping[str, str]
"""Fields of a task, each with the name of its column."""


def check_columns(columns: object) -> Columns:
    """Raises `UsageError` unless `columns` maps fields of a task to names of columns."""
    if not isinstance(columns, Mapping):
        raise UsageError(f'columns is a dict like {{"prompt": "question"}}, not {columns!r:.100}')
    for field, column in columns.items():
        if field not in FIELDS:
            listed = ", ".join(sorted(FIELDS))
            meant = _meant_field(field, column)
            raise UsageError(f"columns: a task has no field {field!r} ({listed}){meant}")
        if not isinstance(column, str):
            raise UsageError(f"columns: {field} names a column by a text, not {column!r:.100}")
    return columns


def with_fields(row: object, columns: Columns, *, where: str) -> tuple[str, Any]:
    """Returns the row's position, and the row with its columns renamed to fields of a task. `where`
    is the position of a row that is not from a file. Raises `UsageError` if the row lacks a column.
    """
    where, fields, empty = row if isinstance(row, FileRecord) else (where, row, ())
    if columns:
        if not isinstance(fields, Mapping):
            raise UsageError(f"{where} has no columns: it is of type {type(fields).__name__}")
        fields = _rename(fields, columns, where, empty)
    if empty and isinstance(fields, Mapping) and _PROMPTS.isdisjoint(fields):
        _check_prompt(columns, where, empty)
    return where, fields


def _rename(
    fields: Mapping[str, object], columns: Columns, where: str, empty: Sequence[str]
) -> Mapping[str, object]:
    for column in columns.values():
        if column not in fields and column not in empty:
            listed = ", ".join(map(str, [*fields, *empty]))[:200] or "none"
            raise UsageError(f"{where} has no column {column!r}; it has {listed}")
    kept = {name: value for name, value in fields.items() if name not in columns.values()}
    filled = {field: column for field, column in columns.items() if column in fields}
    renamed = {**kept, **{field: fields[column] for field, column in filled.items()}}
    return PlainRow(renamed) if isinstance(fields, PlainRow) else renamed


def _check_prompt(columns: Columns, where: str, empty: Sequence[str]) -> None:
    """Raises `UsageError` if the column of the prompt exists, but its cell is empty."""
    for column in (columns.get(field, field) for field in sorted(_PROMPTS)):
        if column in empty:
            raise UsageError(f"{where}: column {column!r} is empty; write a prompt there")


def _meant_field(field: object, column: object) -> str:
    if near := nearest(str(field), FIELDS, alike=0.8):
        return f"; is {near!r} meant?"
    return f"; the field comes first: {column}={field}" if column in FIELDS else ""
