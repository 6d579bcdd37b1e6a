"""Dataset: the source of an evaluation's rows.

Files, folders, lists, generators and functions, in eval-protocol's forms and in plain ones. Every
row gets an id that is the same each time and unique: equal rows get ids by their order.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from holdfast.evaluation.data.files import FileRecord, read
from holdfast.evaluation.data.urls import fetch, is_url
from holdfast.evaluation.rows.convert import ROLES, row_from, task_of
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.records.errors import UsageError
from holdfast.records.task import Task, content_digest

Source = object
"""A path, rows, messages, a generator, or a function that returns any of these."""
Adapter = Callable[[list[dict[str, Any]]], "Iterable[object] | Awaitable[Iterable[object]]"]
Preprocess = Callable[[list[EvaluationRow]], "list[EvaluationRow] | Awaitable[list[EvaluationRow]]"]

_FIELDS = frozenset({*EvaluationRow.model_fields, "prompt"})


@dataclass(frozen=True)
class Dataset:
    """One data set. Each `rows` reads it anew, so callers may change the rows."""

    sources: tuple[Source, ...]
    adapter: Adapter | None = None
    preprocess: Preprocess | None = None
    only: frozenset[str] | None = None
    """The ids of the selected rows; None: all."""
    limit: int | None = None
    """At most so many records, from the first on."""
    beside: Path | None = None
    """A second folder for relative paths."""

    @property
    def name(self) -> str:
        """The names of its files, joined with +; "" if there are none."""
        paths = [path for path in self.sources if isinstance(path, str | Path)]
        return "+".join(Path(path).stem for path in paths)

    async def rows(self) -> list[EvaluationRow]:
        """All rows, with their ids. Raises `UsageError` if there are none."""
        rows = assign_ids(await self._adapt(await self._records()))
        if self.only is not None:
            rows = [row for row in rows if row.input_metadata.row_id in self.only]
        if self.preprocess is not None:
            rows = assign_ids(_to_rows(await _maybe_await(self.preprocess(rows))))
        if not rows:
            raise UsageError(f"the data set has no rows{self._why_none()}")
        return rows

    def _why_none(self) -> str:
        if self.limit == 0:
            return ": the limit is 0"
        if self.only is not None:
            return f": none has one of the ids {', '.join(sorted(self.only))[:200]}"
        return f": {self.name}" if self.name else ""

    async def _records(self) -> list[object]:
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"a data set cannot have {self.limit} rows")
        found: list[object] = []
        for source in self.sources:
            left = None if self.limit is None else self.limit - len(found)
            if left == 0:
                break
            found += await _take(await self._open(source), left)
        return found

    async def _open(self, source: Source) -> "Iterable[object] | AsyncIterable[object]":
        if isinstance(source, str | Path):
            return await self._read(source)
        if callable(source) and not isinstance(source, type):
            source = await _maybe_await(source())
        if callable(load := getattr(source, "load", None)):
            return [row for part in await _maybe_await(load()) for row in part.rows]
        if isinstance(source, str | Path):
            return await self._read(source)
        if isinstance(source, Mapping | EvaluationRow | Task) or _is_conversation(source):
            return [source]
        if isinstance(source, Iterable | AsyncIterable):
            return source
        raise UsageError(f"{source!r:.200} is no data set: give a path, a list, or a function")

    async def _read(self, source: str | Path) -> Iterable[FileRecord]:
        if is_url(source):
            return await asyncio.to_thread(fetch, str(source))
        return read(self._path(source))

    def _path(self, source: str | Path) -> Path:
        path = Path(source).expanduser()
        if self.beside is not None and not path.is_absolute() and not path.exists():
            return self.beside / path
        return path

    async def _adapt(self, records: list[object]) -> list[EvaluationRow]:
        raw = [record.fields if isinstance(record, FileRecord) else record for record in records]
        if self.adapter is None or not all(isinstance(record, dict) for record in raw):
            return _to_rows(records)
        return _to_rows(
            await _maybe_await(self.adapter([record for record in raw if isinstance(record, dict)]))
        )


def datasets_of(
    *,
    input_dataset: object = None,
    input_messages: object = None,
    input_rows: object = None,
    data_loaders: object = None,
    dataset_adapter: Adapter | None = None,
    preprocess_fn: Preprocess | None = None,
    filtered_row_ids: Iterable[str] | None = None,
    max_dataset_rows: int | None = None,
    combine_datasets: bool = True,
    beside: Path | None = None,
) -> list[Dataset]:
    """The data sets of an evaluation: each is an experiment of its own.

    Several `input_dataset`s are one, unless `combine_datasets` is off; each list of rows, or of
    conversations, is one. Raises `UsageError` if not exactly one kind of input is there.
    """
    arguments = {
        "input_dataset": input_dataset,
        "input_messages": input_messages,
        "input_rows": input_rows,
        "data_loaders": data_loaders,
    }
    named = [name for name, value in arguments.items() if value is not None]
    if len(named) != 1:
        problem = f"{' and '.join(named)} were given" if named else "none was given"
        raise UsageError(f"give one of {', '.join(arguments)}: {problem}")
    parts = _split_sources(named[0], arguments[named[0]], combined=combine_datasets)
    return [
        Dataset(
            tuple(_reusable(source) for source in sources),
            adapter=dataset_adapter,
            preprocess=preprocess_fn,
            only=None if filtered_row_ids is None else frozenset(filtered_row_ids),
            limit=max_dataset_rows,
            beside=beside,
        )
        for sources in parts
    ]


def _split_sources(name: str, value: object, *, combined: bool) -> list[tuple[Source, ...]]:
    if name == "input_messages":
        return [(part,) for part in _conversation_sets(value)]
    items = _as_list(value)
    if items is None:
        return [(value,)]
    if not items:
        raise UsageError(f"{name} is empty")
    if name == "input_rows":
        nested = all(isinstance(part, list | tuple) for part in items)
        return (
            [(tuple(part),) for part in items if isinstance(part, Iterable)]
            if nested
            else [(value,)]
        )
    if name == "input_dataset" and not all(_is_source(part) for part in items):
        return [(value,)]  # A list of rows.
    return [tuple(items)] if combined and name == "input_dataset" else [(part,) for part in items]


def _as_list(value: object) -> Sequence[object] | None:
    return value if isinstance(value, list | tuple) else None


def _is_source(value: object) -> bool:
    """Whether the value is a source of many rows."""
    return (
        isinstance(value, str | Path)
        or callable(value)
        or not isinstance(value, Mapping | BaseModel | Task | list | tuple)
    )


def _conversation_sets(value: object) -> list[object]:
    """Conversations by data set: one conversation, a list of them, or a list of lists."""
    items = _as_list(value)
    if not items:
        raise UsageError("input_messages wants conversations: lists of messages")
    if _is_conversation(items) or all(_is_conversation(conversation) for conversation in items):
        return [items]
    return [conversation for conversation in items if conversation is not None]


def _is_conversation(value: object) -> bool:
    items = _as_list(value)
    return bool(items) and all(_is_message(message) for message in items or ())


def _is_message(value: object) -> bool:
    return hasattr(value, "role") or (isinstance(value, Mapping) and "role" in value)


def _reusable(source: Source) -> Source:
    return _ReusableIterator(source) if isinstance(source, Iterator | AsyncIterator) else source


class _ReusableIterator:
    """A generator that can be read again. Its error is kept like its items: without it, later
    readers would take the items before the error for all."""

    def __init__(self, source: "Iterator[object] | AsyncIterator[object]"):
        self._source = source
        self._kept: list[object] = []
        self._raised: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[object]:
        at = 0
        while at < len(self._kept) or await self._more():
            yield self._kept[at]
            at += 1

    async def _more(self) -> bool:
        if self._raised is not None:
            raise self._raised
        try:
            if isinstance(self._source, AsyncIterator):
                self._kept.append(await anext(self._source))
            else:
                self._kept.append(next(self._source))
        except (StopIteration, StopAsyncIteration):
            return False
        except Exception as error:
            self._raised = error
            raise
        return True


async def _take(
    source: "Iterable[object] | AsyncIterable[object]", most: int | None
) -> list[object]:
    if isinstance(source, AsyncIterable):
        found: list[object] = []
        async for record in source:
            found.append(record)
            if len(found) == most:
                break
        return found
    return list(islice(source, most))


async def _maybe_await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# --- rows


def _to_rows(records: Iterable[object]) -> list[EvaluationRow]:
    return [as_row(record, where=f"row {number}") for number, record in enumerate(records, 1)]


def as_row(record: object, *, where: str = "a row") -> EvaluationRow:
    """A new row from a row, a record, a task, a dict, a model, a prompt or a conversation. Raises
    `UsageError`, which names `where`."""
    if isinstance(record, EvaluationRow):
        _check_roles(record, where)
        return record.model_copy(deep=True)
    if isinstance(record, FileRecord):
        return _from_fields(record.fields, record.where)
    if isinstance(record, Task):
        return row_from(record)
    if isinstance(record, Mapping):
        return _from_fields(dict(record), where)
    if isinstance(record, BaseModel):
        return _from_fields(record.model_dump(mode="json", exclude_unset=True), where)
    if isinstance(record, str):
        return EvaluationRow(messages=[Message(role="user", content=record)])
    if _is_conversation(record):
        return _from_fields({"messages": record}, where)
    raise UsageError(f"{where}: {record!r:.200} is no row: give an EvaluationRow or a dict")


def default_dataset_adapter(rows: list[dict[str, Any]]) -> list[EvaluationRow]:
    """Each dict is a row already."""
    return _to_rows(rows)


def _from_fields(fields: dict[str, Any], where: str) -> EvaluationRow:
    if not fields.keys() & _FIELDS:
        raise UsageError(
            f"{where} has no field of a row (messages, prompt, …), but {', '.join(fields)[:200]}: "
            "say what they mean with dataset_adapter="
        )
    if isinstance(prompt := fields.get("prompt"), str) and "messages" not in fields:
        fields = {**fields, "messages": [{"role": "user", "content": prompt}]}
    if isinstance(messages := fields.get("messages"), list | tuple):
        fields = {**fields, "messages": [_plain_message(message) for message in messages]}
    try:
        row = EvaluationRow.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"{where}: {_format_first_error(error)}") from error
    _check_roles(row, where)
    if row.input_metadata.row_id is None and isinstance(name := fields.get("id"), str | int):
        row.input_metadata.row_id = str(name)
    return row


def _check_roles(row: EvaluationRow, where: str) -> None:
    """Checked here, because the line is known here."""
    for at, message in enumerate(row.messages):
        if message.role not in ROLES:
            raise UsageError(
                f"{where}: messages[{at}]: role {message.role!r} is none of {', '.join(ROLES)}"
            )


def _plain_message(message: object) -> object:
    """Other libraries' message classes as dicts: they have the same fields."""
    if isinstance(message, BaseModel) and not isinstance(message, Message):
        return message.model_dump(mode="json", exclude_unset=True)
    return message


def _format_first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def assign_ids(rows: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """Sets every row's id. Where an id stands twice, the later rows get a number behind it."""
    seen: Counter[str] = Counter()
    listed = list(rows)
    taken = {row.input_metadata.row_id for row in listed}
    for number, row in enumerate(listed, 1):
        name = row.input_metadata.row_id
        if not name:
            digest = content_digest(task_of(row, where=f"row {number}: "))[:12]
            name = f"{digest}-{seen[digest]}"
            seen[digest] += 1
        else:
            seen[name] += 1
            if seen[name] > 1:
                name = _free_id(name, seen[name], taken)
                taken.add(name)
        row.input_metadata.row_id = name
    return listed


def _free_id(name: str, number: int, taken: set[str | None]) -> str:
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
