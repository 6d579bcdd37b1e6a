"""Task: one row of a data set, and how rows are read.

Ids are given, or derived from the row's content plus its ordinal among equal rows: two rows with
the same content stay two tasks, and inserting an unrelated row renames nothing.

What a journal cannot hold is refused when it is read, by its place: nothing is recorded before.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NoReturn

import msgspec
from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role, user

MAX_ID = 200
NAMED = 5
_FIELDS = frozenset({"id", "messages", "prompt", "tools", "ground_truth", "metadata"})


class Task(Struct, frozen=True, omit_defaults=True):
    """One row of a data set: what is asked, and what it is judged by.

    Within a run, its `id` is its own. Columns that have no field here are in `metadata`.
    """

    id: str
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, object], ...] = ()
    ground_truth: object = None
    metadata: dict[str, object] = {}

    if not TYPE_CHECKING:  # Who checks types knows what is not there.

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"a task has no {name!r}; {_where_to_look(self, name)}")


def _where_to_look(task: Task, name: str) -> str:
    if name == "prompt":
        return "it is the first of task.messages"
    if name in task.metadata:
        return f"it is a column of the row: task.metadata[{name!r}]"
    columns = ", ".join(map(repr, task.metadata)) or "none"
    return f"columns of its own are in task.metadata, which has {columns}"


class _RowId(str):
    """An id that other tools derive from a row's content: equal rows have the same."""


class _Row(Struct):
    id: str | int | None = None
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    tools: tuple[dict[str, object], ...] | None = None
    ground_truth: object = None
    metadata: dict[str, object] | None = None


def read_tasks(path: str | Path) -> list[Task]:
    """Reads a JSONL file. The first bad line raises `UsageError` with its number and the reason."""
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"task file {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"task file {path} cannot be read: {error.strerror}") from error
    # Some editors begin a file with a byte order mark.
    lines = enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    rows = {n: _parse(line, where=f"{path}:{n}") for n, line in lines if line.strip()}
    if not rows:
        raise UsageError(f"task file {path} has no tasks; it wants one JSON object per line")
    return _with_ids(rows, where=str(path), unit="lines")


def as_tasks(rows: Iterable["Task | Mapping[str, object]"]) -> list[Task]:
    """Tasks from Python values: `Task`s or dicts shaped like lines of a task file."""
    _refuse_what_is_no_list(rows)
    named = {number: _from_value(row, where=f"task {number}") for number, row in enumerate(rows, 1)}
    return _with_ids(named, where="tasks", unit="tasks")


def _refuse_what_is_no_list(rows: object) -> None:
    if isinstance(rows, str | bytes | PurePath):
        raise UsageError(
            "tasks is a text, not a list of tasks; if it names a file, read that with "
            "holdfast.records.task.read_tasks"
        )
    if isinstance(rows, Mapping | Task):
        raise UsageError("tasks is one task, not a list of tasks; write tasks=[…] around it")
    if not isinstance(rows, Iterable):
        raise UsageError(f"tasks is of type {type(rows).__name__}; give a list of tasks")


def _from_value(row: object, *, where: str) -> tuple[str | None, Task]:
    values = msgspec.structs.asdict(row) if isinstance(row, Task) else row
    try:
        if isinstance(row, Task):
            own(row)  # Its types are the caller's word; a journal reads it back only if they hold.
            _check(row.id, row.tools, where=where)
            return row.id, row
        line = msgspec.json.encode(dict(row) if isinstance(row, Mapping) else row)
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply, or within itself") from error
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {_unrecordable(values) or error}") from error
    _refuse_unfaithful(row, where=where)
    return _parse(line, where=where)


def _refuse_unfaithful(row: object, *, where: str) -> None:
    """JSON would say something else: null for NaN, and for a set a list in an order that is another
    in the next process, so that its task would be another, too."""
    for path, value in _walk(row):
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{where}: {_not_finite(path, value)}")
        if isinstance(value, set | frozenset):
            raise UsageError(f"{where}: {path} is a set, which has no order; give a sorted list")


def _with_ids(rows: Mapping[int, tuple[str | None, Task]], *, where: str, unit: str) -> list[Task]:
    """Gives every row its id; a given id that is there twice is an error."""
    _refuse_twice(rows, where=where, unit=unit)
    taken = {name for name, _ in rows.values() if _is_explicit(name)}
    seen: Counter[str] = Counter()
    tasks = []
    for name, task in rows.values():
        if not _is_explicit(name):
            name = next(each for each in _derived(name, task, seen) if each not in taken)
            taken.add(name)
        tasks.append(msgspec.structs.replace(task, id=name))
    return tasks


def _is_explicit(name: str | None) -> bool:
    return name is not None and not isinstance(name, _RowId)


def _derived(name: str | None, task: Task, seen: Counter[str]) -> Iterator[str]:
    """The ids that a row may have, the first that is free."""
    begin = content_digest(task)[:12] if name is None else str(name)
    if name is not None and not seen[begin]:
        seen[begin] = 1
        yield begin
    while True:
        seen[begin] += 1
        yield f"{begin}-{seen[begin] - 1 if name is None else seen[begin]}"


def _refuse_twice(rows: Mapping[int, tuple[str | None, Task]], *, where: str, unit: str) -> None:
    explicit: dict[str, list[int]] = {}
    for number, (name, _) in rows.items():
        if name is not None and _is_explicit(name):
            explicit.setdefault(name, []).append(number)
    for name, at in explicit.items():
        if len(at) > 1:
            listed = ", ".join(map(str, at[:NAMED])) + (", …" if len(at) > NAMED else "")
            raise UsageError(
                f"{where}: task id {name!r} is used {len(at)} times, in {unit} {listed}; give each "
                "task an id of its own"
            )


def own(task: Task) -> Task:
    """A copy of one's own: user code may change metadata and contents, and nobody else's."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task)


def content_digest(task: Task) -> str:
    """Names what the task asks, whatever its id."""
    content = msgspec.structs.replace(task, id="")
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def tasks_digest(tasks: Iterable[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.id}\0{content_digest(task)}\n".encode())
    return digest.hexdigest()


def _parse(line: bytes, *, where: str) -> tuple[str | None, Task]:
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: {_unreadable(line) or f'not JSON: {error}'}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: wants a JSON object, found {type(raw).__name__}")
    try:
        row = msgspec.convert(_plain(raw), _Row)
    except (msgspec.ValidationError, RecursionError) as error:
        known = f"; the roles are {', '.join(Role)}" if "enum value" in str(error) else ""
        raise UsageError(f"{where}: {error}{known}") from error
    name = _own_id(row, raw)
    _check(name, row.tools or (), where=where)
    _check_recordable(raw, where=where)
    # Columns we do not know stay with the task: data sets have them, and scorers read them.
    extra = {key: value for key, value in raw.items() if key not in _FIELDS}
    return name, Task(
        id="",
        messages=_messages(row, where=where),
        tools=row.tools or (),
        ground_truth=row.ground_truth,
        metadata=extra | (row.metadata or {}),
    )


def _check(name: str | None, tools: Iterable[dict[str, object]], *, where: str) -> None:
    if name is not None and not 0 < len(name) <= MAX_ID:
        raise UsageError(f"{where}: an id has 1 to {MAX_ID} characters")
    for at, tool in enumerate(tools):
        if tool.get("type", "function") == "function" and not _function_name(tool):
            raise UsageError(
                f"{where}: tools[{at}] names no function; it wants "
                '{"type": "function", "function": {"name": …, "parameters": …}}'
            )


def _function_name(tool: dict[str, object]) -> bool:
    """Whether there is one, beside the type or in `function`: APIs differ in that."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return isinstance(name, str) and bool(name)


def _check_recordable(raw: dict[str, object], *, where: str) -> None:
    """JSON has integers of any size; records do not."""
    try:
        msgspec.msgpack.encode(raw)
    except OverflowError as error:
        # An id may be any integer: it becomes a text.
        found = _unrecordable({key: value for key, value in raw.items() if key != "id"})
        if found:
            raise UsageError(f"{where}: {found}") from error


def _unreadable(line: bytes) -> str:
    """Why a line is refused that other readers of JSON would take; "" when it is not for that."""
    try:
        return _unrecordable(json.loads(line))
    except (ValueError, RecursionError):
        return ""


def _unrecordable(row: object) -> str:
    """The first value that no record can hold, by its field, and what to do; "" if all can."""
    for path, value in _walk(row):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return f"{path} is an integer of more than 64 bits; write it as a string"
        if isinstance(value, float) and not math.isfinite(value):
            return _not_finite(path, value)
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            return f"{path} has half of a character, a lone surrogate; write the whole or none"
    return ""


def _not_finite(path: str, value: float) -> str:
    return f"{path} is {value}, a number that JSON does not have; write null, or a string"


def _walk(row: object) -> Iterator[tuple[str, object]]:
    """Every value in it, with its field."""
    waiting: list[tuple[str, object]] = [("", row)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if isinstance(value, Mapping):
            inner = [(f"{path}.{_quote_key(key)}".lstrip("."), item) for key, item in value.items()]
            keys = [(f"a key of {path or 'the row'}", key) for key in value]
            waiting += reversed([*keys, *inner])
        elif isinstance(value, list | tuple):
            waiting += reversed([(f"{path}[{at}]", item) for at, item in enumerate(value)])
        elif isinstance(value, msgspec.Struct):
            waiting.append((path, msgspec.structs.asdict(value)))


def _quote_key(key: object) -> str:
    return str(key).encode(errors="backslashreplace").decode()


def _plain(raw: dict[str, object]) -> dict[str, object]:
    """Rows of other tools write what is absent as null, and reasoning under its chat name."""
    messages = raw.get("messages")
    if not isinstance(messages, list):
        return raw
    return raw | {"messages": [_plain_message(message) for message in messages]}


def _plain_message(message: object) -> object:
    if not isinstance(message, dict):
        return message
    plain = {key: value for key, value in message.items() if value is not None or key == "content"}
    if "reasoning_content" in plain:
        plain.setdefault("reasoning", plain.pop("reasoning_content"))
    return plain


def _own_id(row: _Row, raw: dict[str, object]) -> str | None:
    """The row's own id, or the one that an evaluation row carries."""
    if row.id is not None:
        return str(row.id)
    inner = raw.get("input_metadata")
    found = inner.get("row_id") if isinstance(inner, dict) else None
    return _RowId(found) if isinstance(found, str) and found else None


def _messages(row: _Row, *, where: str) -> tuple[Message, ...]:
    if row.messages is not None and row.prompt is not None:
        raise UsageError(f"{where}: give 'messages' or 'prompt', not both")
    if row.prompt is not None:
        return (user(row.prompt),)
    if row.messages is None:
        raise UsageError(
            f"{where}: needs 'messages' (a list; empty where an environment speaks first) or "
            "'prompt' (a string)"
        )
    return row.messages
