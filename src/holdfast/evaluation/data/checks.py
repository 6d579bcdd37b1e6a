"""Checks the rows of a data set. An evaluation rejects the same rows as `holdfast run`, with the
same messages.

Each row is checked when it is read, before anything is sampled, because its file and line are known
then. A row that an evaluation or an export wrote may have both messages and a `prompt`. The
`prompt` is then an ordinary column of the data set.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from holdfast.evaluation.rows.convert import FUNCTION, ROLES
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.records.errors import UsageError
from holdfast.records.message import as_messages, check_content
from holdfast.records.task import MAX_SHOWN, PlainRow, check_id, refuse_unfaithful

_WRITTEN = frozenset({"rollout_status", "execution_metadata"})
"""Fields of rows that were written after a rollout."""
_WANTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "list_type": "a list",
}
"""The kind of value that the user should give, for each of pydantic's types of errors."""


def with_messages(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the fields of a record, with its prompt as messages."""
    if "prompt" not in fields:
        return fields
    prompt = fields["prompt"]
    if fields.get("messages") is not None:
        if prompt is not None and not _WRITTEN & fields.keys():
            raise UsageError(f"{where}: give 'messages' or 'prompt', not both")
        return fields
    if isinstance(prompt, str):
        return {**fields, "messages": [{"role": "user", "content": prompt}]}
    if isinstance(prompt, list | tuple):
        return {**fields, "messages": list(prompt)}
    raise UsageError(f"{where}: {_is(prompt, 'prompt')}; it wants a text, or a list of messages")


def own_id(fields: Mapping[str, Any], where: str) -> str | None:
    """Returns the id in the record, or None."""
    name = fields.get("id")
    if name is None:
        return None
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise UsageError(f"{where}: {_is(name, 'id')}; it wants a text or a whole number")
    check_id(str(name), where=where)
    return str(name)


def check_faithful(record: object, where: str) -> None:
    """Refuses a record with NaN or sets, because another process would read back a different value.
    Records from JSON or tables are not checked, since they cannot hold such values."""
    if isinstance(record, EvaluationRow):
        refuse_unfaithful(
            {"ground_truth": record.ground_truth, **(record.model_extra or {})}, where=where
        )
    elif not isinstance(record, PlainRow):
        refuse_unfaithful(record, where=where)


def check_messages(row: EvaluationRow, where: str) -> None:
    """Raises `UsageError` for a message with an unknown role, or without the content that its role
    requires."""
    for at, message in enumerate(row.messages):
        place = f"{where}: messages[{at}]"
        if message.role not in ROLES:
            raise UsageError(f"{place}: role {message.role!r} is none of {', '.join(ROLES)}")
        role = "tool" if message.role == FUNCTION else message.role
        members = dict.fromkeys([*message.model_fields_set, *(message.model_extra or {})])
        check_content({**members, "role": role}, place)


def explain(error: ValidationError, fields: Mapping[str, Any], where: str) -> UsageError:
    """Returns the first error of a row as a `UsageError`, in the words of `holdfast run`."""
    first = error.errors()[0]
    place = first["loc"]
    if place and place[0] == "messages":
        try:
            as_messages(fields["messages"], where=f"{where}: messages")
        except UsageError as usage_error:
            return usage_error
    if first["type"] == "missing":
        return UsageError(f"{where}: {_path(place[:-1]) or 'the row'} has no {place[-1]!r}")
    wants = _WANTED.get(first["type"])
    if wants is None:
        return UsageError(f"{where}: {_path(place)}: {first['msg']}")
    return UsageError(f"{where}: {_is(first['input'], _path(place))}; it wants {wants}")


def _path(place: Sequence[str | int]) -> str:
    """Returns the path of a value in a row as text, for example `messages[0].content`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]


def _is(value: object, name: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"of type {type(value).__name__}"
    return f"{name} is {text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}…'}"
