"""Rows of a table: what `holdfast export --what rows --out FILE.parquet` wrote, as it was.

Columns have one type, so that values of open shape are JSON text there, and what is absent is null.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

_TEXTS = ("tools", "input_metadata", "rollout_status", "ground_truth", "evaluation_result")
OTHERS = "others"
"""The column for what has none of its own."""


def from_columns(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row. Of a row that no export wrote into columns, as they are."""
    if not isinstance(fields.get("input_metadata"), str):
        return fields
    whole = {
        name: _read(value) if name in _TEXTS else value
        for name, value in fields.items()
        if value is not None
    }
    if isinstance(executed := whole.get("execution_metadata"), Mapping):
        whole["execution_metadata"] = _read_all(executed)
    return _with_others(whole)


def _read_all(fields: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: _read_all(value) if isinstance(value, Mapping) else _read(value)
        for name, value in fields.items()
        if value is not None
    }
    return _with_others(found)


def _with_others(fields: dict[str, Any]) -> dict[str, Any]:
    others = _read(fields.get(OTHERS))
    if not isinstance(others, dict):
        return fields
    return {name: value for name, value in fields.items() if name != OTHERS} | others


def _read(value: Any) -> Any:
    """What a text says, if it is JSON; a text that is none is one."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
