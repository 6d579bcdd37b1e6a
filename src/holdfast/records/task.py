"""Task: one row of a data set, and how rows are read.

Ids are given, or derived from the row's content plus its ordinal among equal rows: two rows with
the same content stay two tasks, and inserting an unrelated row renames nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.records.message import Message, user

MAX_ID = 200
_FIELDS = frozenset({"id", "messages", "prompt", "tools", "ground_truth", "metadata"})


class Task(Struct, frozen=True, omit_defaults=True):
    id: str
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, object], ...] = ()
    ground_truth: object = None
    metadata: dict[str, object] = {}


class _RowId(str):
    """An id that other tools derive from a row's content: equal rows have the same."""


class _Row(Struct):
    id: str | int | None = None
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    tools: tuple[dict[str, object], ...] | None = None
    ground_truth: object = None
    metadata: dict[str, object] | None = None


def read_tasks(path: Path) -> list[Task]:
    """Reads a JSONL file. The first bad line raises `UsageError` with its number and the reason."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"task file {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"task file {path} cannot be read: {error.strerror}") from error
    # Some editors begin a file with a byte order mark.
    lines = enumerate(text.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    rows = [_parse(line, where=f"{path}:{number}") for number, line in lines if line.strip()]
    if not rows:
        raise UsageError(f"task file {path} has no tasks; it wants one JSON object per line")
    return with_ids(rows, where=str(path))


def as_tasks(rows: Iterable["Task | Mapping[str, object]"]) -> list[Task]:
    """Tasks from Python values: `Task`s or dicts shaped like lines of a task file."""
    named = [
        (row.id, row)
        if isinstance(row, Task)
        else _parse(msgspec.json.encode(row), where=f"task {number}")
        for number, row in enumerate(rows, 1)
    ]
    return with_ids(named, where="tasks")


def with_ids(rows: Sequence[tuple[str | None, Task]], *, where: str) -> list[Task]:
    """Gives every row its id; a given id that is there twice is an error."""
    given = Counter(name for name, _ in rows if name is not None and not isinstance(name, _RowId))
    twice = [name for name, times in given.items() if times > 1]
    if twice:
        raise UsageError(f"{where}: task id {twice[0]!r} is used {given[twice[0]]} times")
    seen: Counter[str] = Counter()
    tasks = []
    for name, task in rows:
        if name is None:
            digest = content_digest(task)[:12]
            name = f"{digest}-{seen[digest]}"
            seen[digest] += 1
        elif isinstance(name, _RowId):
            seen[name] += 1
            name = str(name) if seen[name] == 1 else f"{name}-{seen[name]}"
        tasks.append(msgspec.structs.replace(task, id=name))
    return tasks


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
        raise UsageError(f"{where}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: wants a JSON object, found {type(raw).__name__}")
    try:
        row = msgspec.convert(_plain(raw), _Row)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{where}: {error}") from error
    name = _given_id(row, raw)
    if name is not None and not 0 < len(name) <= MAX_ID:
        raise UsageError(f"{where}: an id has 1 to {MAX_ID} characters")
    # Columns we do not know stay with the task: data sets have them, and scorers read them.
    extra = {key: value for key, value in raw.items() if key not in _FIELDS}
    return name, Task(
        id="",
        messages=_messages(row, where=where),
        tools=row.tools or (),
        ground_truth=row.ground_truth,
        metadata=extra | (row.metadata or {}),
    )


def _plain(raw: dict[str, object]) -> dict[str, object]:
    """Rows of other tools write what is absent as null, and reasoning under its chat name."""
    messages = raw.get("messages")
    if not isinstance(messages, list):
        return raw
    return raw | {"messages": [_plain_message(one) for one in messages]}


def _plain_message(message: object) -> object:
    if not isinstance(message, dict):
        return message
    plain = {key: value for key, value in message.items() if value is not None or key == "content"}
    if "reasoning_content" in plain:
        plain.setdefault("reasoning", plain.pop("reasoning_content"))
    return plain


def _given_id(row: _Row, raw: dict[str, object]) -> str | None:
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
