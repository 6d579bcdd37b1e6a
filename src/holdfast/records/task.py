"""A task is one row of a data set. This module turns rows into tasks.

A row has its own id, or an id that is derived from its content without the `ground_truth`. Equal
rows get numbers: `row-3fa94c`, `row-3fa94c-2`. Two equal rows therefore stay two tasks. Changes to
other rows, their order, or a `ground_truth` rename no task.

Content that a journal cannot hold is refused when it is read, before anything is recorded. The
error names its place.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from holdfast.records.encoding.text_files import decode_text
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, as_messages, user

MAX_ID = 200
MAX_SHOWN = 60
NAMED = 5
FIELDS = frozenset({"id", "messages", "prompt", "tools", "ground_truth", "metadata"})
_OWN_FIELDS = FIELDS - {"ground_truth"}


class Task(Struct, frozen=True, omit_defaults=True):
    """One row of a data set: the question, and the data for judging an answer.

    The `id` is unique within a run. Columns without a field here are in `metadata`. The caller may
    pass messages as dicts in OpenAI's shape.
    """

    id: str
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, object], ...] = ()
    ground_truth: object = None
    metadata: dict[str, object] = {}
    prompt_is_text: bool = False
    """Whether the row's prompt is a text, which became the user's message. Reward functions of TRL
    get such a prompt as a text."""

    def __post_init__(self) -> None:
        original: object = self.messages
        if type(original) is tuple:
            # No generator, because this runs several times for each of a million tasks.
            for message in original:
                if type(message) is not Message:
                    break
            else:
                return
        messages = as_messages(original, where=f"task {self.id!r}: messages")
        msgspec.structs.force_setattr(self, "messages", messages)

    if not TYPE_CHECKING:  # Type checkers know which attributes do not exist.

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"a task has no {name!r}; {_where_to_look(self, name)}")


def _where_to_look(task: Task, name: str) -> str:
    if name == "prompt":
        return "it is the first of task.messages"
    held: object = task.metadata  # A task made in Python may contain anything.
    if not isinstance(held, dict):
        return f"its metadata must be a dict, not {held!r:.100}"
    if name in held:
        return f"it is a column of the row: task.metadata[{name!r}]"
    columns = ", ".join(map(repr, held)) or "none"
    return f"columns of its own are in task.metadata, which has {columns}"


class _RowId(str):
    """An id that other tools derive from a row's content, so that equal rows have the same id."""


class _Row(Struct):
    id: str | int | None = None
    messages: list[object] | None = None
    prompt: str | list[object] | None = None
    tools: tuple[dict[str, object], ...] | None = None
    ground_truth: object = None
    metadata: dict[str, object] | None = None


class ParsedRow(NamedTuple):
    """A row as a task that has no final id yet."""

    where: str
    """Its position, such as `task 3` or `file:3`."""
    name: str | None
    """The id that the row gives; None if the id follows from the content."""
    task: Task


def as_tasks(rows: Iterable["Task | Mapping[str, object] | str"]) -> list[Task]:
    """Converts Python values to tasks: `Task`s, dicts shaped like lines of a task file, prompts, or
    conversations (lists of messages). Raises `UsageError`."""
    _refuse_what_is_no_list(rows)
    return with_ids([parse_row(row, where=f"task {number}") for number, row in enumerate(rows, 1)])


def parse_row(row: object, *, where: str) -> ParsedRow:
    """Raises `UsageError` with the position `where` for a row that is no task."""
    return ParsedRow(where, *_from_value(row, where=where))


def with_ids(rows: Sequence[ParsedRow], *, where: str = "tasks", unit: str = "tasks") -> list[Task]:
    """Gives every row its id. Raises `UsageError` if a given id occurs twice. The message names
    `where`, and the positions counted in `unit`."""
    given = [row.name for row in rows if _is_explicit(row.name)]
    if len(set(given)) < len(given):
        raise _used_twice(rows, given, where=where, unit=unit)
    if len(given) == len(rows):
        return [row.task for row in rows]
    names = [(str(row.name or row_name(row.task)), _is_explicit(row.name)) for row in rows]
    return [
        msgspec.structs.replace(row.task, id=name)
        for row, name in zip(rows, distinct_ids(names), strict=True)
    ]


def decode_row(line: bytes, *, where: str) -> object:
    """Decodes the JSON of a line. Raises `UsageError` if the line is not JSON or a record cannot
    hold its content."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        decode_text(line, where=where)
        raise UsageError(f"{where}: {_unreadable(line) or f'not JSON: {error}'}") from error


class PlainRow(dict[str, object]):
    """A row that was read from JSON, so that it contains only JSON values."""


def is_conversation(value: object) -> bool:
    """Returns whether the value is a list of messages rather than a list of rows."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(_is_message(message) for message in value)


def _is_message(value: object) -> bool:
    return hasattr(value, "role") or (isinstance(value, Mapping) and "role" in value)


def _refuse_what_is_no_list(rows: object) -> None:
    if isinstance(rows, str | bytes | PurePath):
        raise UsageError(
            "tasks is a text, not a list of tasks; if it names a file, read that with "
            "holdfast.read_tasks"
        )
    if isinstance(rows, Mapping | Task):
        raise UsageError("tasks is one task, not a list of tasks; write tasks=[…] around it")
    if not isinstance(rows, Iterable):
        raise UsageError(f"tasks is of type {type(rows).__name__}; give a list of tasks")


def _from_value(row: object, *, where: str) -> tuple[str | None, Task]:
    if isinstance(row, PlainRow):
        return _parse(row, where=where)
    values = msgspec.structs.asdict(row) if isinstance(row, Task) else row
    try:
        if isinstance(row, Task):
            # The caller declared the types, but only types that hold can be read back from a
            # journal.
            own(row)
            _check(row.id, row.tools, where=where)
            return row.id, row
        fields = _fields_of(row, where)
        raw = msgspec.json.decode(msgspec.json.encode(fields, enc_hook=_dumped))
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply, or within itself") from error
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {_unrecordable(values) or error}") from error
    refuse_unfaithful(row, where=where)
    return _parse(raw, where=where)


def _dumped(value: object) -> object:
    """Converts messages of other libraries, and other values with `model_dump`, to JSON values."""
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    # As in `as_message`: absent fields of a message are not written.
    return dump(mode="json", exclude_none=hasattr(value, "role"))


def _fields_of(row: object, where: str) -> dict[str, object]:
    if isinstance(row, Mapping):
        return dict(row)
    if isinstance(row, str):
        return {"prompt": row}
    if is_conversation(row):
        assert isinstance(row, list | tuple), "a conversation is a list"
        return {
            "messages": [{**each.to_dict(), "content": each.content} for each in as_messages(row)]
        }
    dump = getattr(row, "model_dump", None)
    if callable(dump):
        return dict(dump(mode="json", exclude_unset=True))
    raise UsageError(
        f"{where} is of type {type(row).__name__} ({row!r:.100}); give a dict with a 'prompt' or "
        "'messages', a text, or a holdfast.Task"
    )


def refuse_unfaithful(row: object, *, where: str) -> None:
    """Raises `UsageError` for values that JSON would change. NaN would become null. A set would
    become a list whose order differs between processes, so that the task would differ too."""
    for path, value in _walk(row):
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{where}: {_not_finite(path, value)}")
        if isinstance(value, set | frozenset):
            raise UsageError(f"{where}: {path} is a set, which has no order; give a sorted list")


def distinct_ids(names: Iterable[tuple[str, bool]]) -> list[str]:
    """Returns a distinct id for each row. Each name comes with True if the row has the name itself,
    and False if the name was derived from the row's content.

    The first row with a given name keeps the name as its id. A derived name gets a number if
    another row has it: `row-3fa94c-2`. A name that is given again gets a number too.
    """
    listed = list(names)
    taken = {name for name, is_explicit in listed if is_explicit}
    seen: Counter[str] = Counter()
    ids: dict[str, None] = {}
    for name, is_explicit in listed:
        if not is_explicit or name in ids:
            name = next(each for each in _derived(name, seen) if each not in taken)
        taken.add(name)
        ids[name] = None
    return list(ids)


def _is_explicit(name: str | None) -> bool:
    return name is not None and not isinstance(name, _RowId)


def _derived(begin: str, seen: Counter[str]) -> Iterator[str]:
    """Yields the possible ids of a row, the shortest first."""
    if not seen[begin]:
        seen[begin] = 1
        yield begin
    while True:
        seen[begin] += 1
        yield f"{begin}-{seen[begin]}"


def _used_twice(
    rows: Sequence[ParsedRow], given: Sequence[str | None], *, where: str, unit: str
) -> UsageError:
    name = next(name for name, times in Counter(given).items() if times > 1)
    at = [_number_in(row.where) for row in rows if _is_explicit(row.name) and row.name == name]
    listed = ", ".join(at[:NAMED]) + (", …" if len(at) > NAMED else "")
    return UsageError(
        f"{where}: task id {name!r} is used {len(at)} times, in {unit} {listed}; give each "
        "task an id of its own"
    )


def _number_in(position: str) -> str:
    """Returns the number in a position, such as the 3 of `task 3` and of `file.jsonl:3`."""
    return re.split(r"[: ]", position)[-1]


def own(task: Task) -> Task:
    """Returns a deep copy of the task, so that user code can change metadata and contents without
    effect on other code."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task)


def content_digest(task: Task) -> str:
    """Returns a digest of the task's content. It does not depend on the task's id, or on whether
    the prompt was a text or messages."""
    content = msgspec.structs.replace(task, id="", prompt_is_text=False)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def row_name(task: Task) -> str:
    """Returns the derived id of a row without an id, before a number is added for equal rows."""
    return f"row-{content_digest(msgspec.structs.replace(task, ground_truth=None))[:6]}"


def tasks_digest(tasks: Iterable[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.id}\0{content_digest(task)}\n".encode())
    return digest.hexdigest()


def _parse(raw: object, *, where: str) -> tuple[str | None, Task]:
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: wants a JSON object, found {type(raw).__name__}")
    try:
        row = msgspec.convert(raw, _Row)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_ill_typed(raw) or error}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: {error}") from error
    name = _own_id(row, raw)
    _check(name, row.tools or (), where=where)
    _check_recordable(raw, where=where)
    # Unknown columns stay in the task, because data sets have them and scorers read them.
    extra = with_ground_truth({k: value for k, value in raw.items() if k not in _OWN_FIELDS})
    return name, Task(
        id=str(name or ""),
        messages=_messages(row, raw, where=where),
        tools=row.tools or (),
        ground_truth=extra.pop("ground_truth", None),
        metadata=extra | (row.metadata or {}),
        prompt_is_text=isinstance(row.prompt, str),
    )


def with_ground_truth(columns: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns with the ground truth of verl's column `reward_model` in a column of its
    own, unless there is one."""
    model = columns.get("reward_model")
    if columns.get("ground_truth") is not None or not isinstance(model, dict):
        return columns
    if "ground_truth" not in model:
        return columns
    rest = {name: value for name, value in model.items() if name != "ground_truth"}
    return {**columns, "ground_truth": model["ground_truth"], "reward_model": rest}


_WANTED = {
    "id": "a text or a whole number",
    "messages": "a list of messages",
    "prompt": "a text, or a list of messages",
    "tools": "a list of JSON objects",
    "metadata": "a JSON object",
}


def _ill_typed(raw: Mapping[str, object]) -> str:
    """Describes the first field with a wrong type, and the right type; "" if all types are
    right."""
    for name in filter(raw.__contains__, _WANTED):
        try:
            msgspec.convert({name: raw[name]}, _Row)
        except msgspec.ValidationError:
            as_json = json.dumps(raw[name], ensure_ascii=False)
            shown = as_json if len(as_json) <= MAX_SHOWN else f"{as_json[:MAX_SHOWN]}…"
            return f"{name} is {shown}; it wants {_WANTED[name]}"
    return ""


def _check(name: str | None, tools: Iterable[dict[str, object]], *, where: str) -> None:
    if name is not None:
        check_id(name, where=where)
    for at, tool in enumerate(tools):
        check_schema(tool, where=f"{where}: tools[{at}]")


def check_id(name: str, *, where: str) -> None:
    if not 0 < len(name) <= MAX_ID:
        raise UsageError(f"{where}: an id has 1 to {MAX_ID} characters")


def check_schema(tool: dict[str, object], *, where: str) -> None:
    """Raises `UsageError` if the schema of a function has no name. Tools of other types are left to
    the engine."""
    if tool.get("type", "function") == "function" and not _function_name(tool):
        raise UsageError(
            f"{where} names no function; it wants "
            '{"type": "function", "function": {"name": …, "parameters": …}}'
        )


def _function_name(tool: dict[str, object]) -> bool:
    """Returns whether the tool has a function name, beside the type or in `function`. APIs differ
    in the place."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return isinstance(name, str) and bool(name)


def _check_recordable(raw: dict[str, object], *, where: str) -> None:
    """Raises `UsageError` for integers that are too large for a record."""
    try:
        msgspec.msgpack.encode(raw)
    except OverflowError as error:
        # An id may be any integer, because it becomes a text.
        reason = _unrecordable({key: value for key, value in raw.items() if key != "id"})
        if reason:
            raise UsageError(f"{where}: {reason}") from error


def _unreadable(line: bytes) -> str:
    """Returns the reason why a line is refused that other JSON readers accept, such as NaN; "" if
    there is no such reason."""
    try:
        return _unrecordable(json.loads(line))
    except (ValueError, RecursionError):
        return ""


def _unrecordable(row: object) -> str:
    """Describes the first value that no record can hold, with its field and a remedy; "" if records
    can hold all values."""
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
    """Yields every value in the row, with the name of its field."""
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


def _own_id(row: _Row, raw: dict[str, object]) -> str | None:
    """Returns the row's own id, or the id in an evaluation row; None without an id."""
    if row.id is not None:
        return str(row.id)
    inner = raw.get("input_metadata")
    own_id = inner.get("row_id") if isinstance(inner, dict) else None
    return _RowId(own_id) if isinstance(own_id, str) and own_id else None


def _messages(row: _Row, raw: Mapping[str, object], *, where: str) -> tuple[Message, ...]:
    if row.messages is not None and row.prompt is not None:
        raise UsageError(f"{where}: give 'messages' or 'prompt', not both")
    if isinstance(row.prompt, str):
        if not row.prompt.strip():
            raise UsageError(f"{where}: the prompt is empty; write one")
        return (user(row.prompt),)
    if row.prompt is not None:
        return as_messages(row.prompt, where=f"{where}: prompt")
    if row.messages is None:
        raise UsageError(
            f"{where}: needs 'messages' (a list; empty where an environment speaks first) or "
            f"'prompt' (a string){_there_is(raw)}"
        )
    return as_messages(row.messages, where=f"{where}: messages")


def _there_is(raw: Mapping[str, object]) -> str:
    if "role" in raw and "content" in raw:
        return '; it is a message: a conversation is {"messages": [{…}, …]}'
    columns = [name for name in raw if name not in FIELDS]
    if not columns:
        return ""
    if len(raw) == 1 and _is_rows(raw[columns[0]]):
        return f"; its {columns[0]!r} is a list of rows: give that list, or a line for each row"
    listed = ", ".join(map(repr, columns))[:200]
    example = likely_prompt(columns)
    return (
        f"; it has {listed}: say which is the prompt, --columns prompt={example} (from Python: "
        f"columns={{'prompt': {example!r}}})"
    )


def likely_prompt(columns: Sequence[str]) -> str:
    """Returns the column that probably has the question."""
    return next((name for name in columns if name in _ASKS), columns[0])


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


_ASKS = ("question", "query", "problem", "instruction", "input", "text")
"""Common names of the column with the question."""
