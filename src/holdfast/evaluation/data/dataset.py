"""Dataset: where the rows of an evaluation come from.

Files, folders, lists, generators and functions, in eval-protocol's shapes and in plain ones. Every
row gets an id that is the same each time, and no two rows have the same: equal ones are told apart
by their order.
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

from holdfast.evaluation.data.files import Found, read
from holdfast.evaluation.data.urls import fetched, is_url
from holdfast.evaluation.rows.convert import ROLES, row_from, task_of
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.records.errors import UsageError
from holdfast.records.task import Task, content_digest

Source = object
"""A path, rows, messages, a generator, or a function that gives any of these."""
Adapter = Callable[[list[dict[str, Any]]], "Iterable[object] | Awaitable[Iterable[object]]"]
Preprocess = Callable[[list[EvaluationRow]], "list[EvaluationRow] | Awaitable[list[EvaluationRow]]"]

_FIELDS = frozenset({*EvaluationRow.model_fields, "prompt"})


@dataclass(frozen=True)
class Dataset:
    """One data set. Read anew by each `rows`; what a reader does to rows is nobody else's."""

    sources: tuple[Source, ...]
    adapter: Adapter | None = None
    preprocess: Preprocess | None = None
    only: frozenset[str] | None = None
    """The ids of the rows that are wanted; None: all of them."""
    limit: int | None = None
    """How many records are taken, from the first on."""
    beside: Path | None = None
    """A folder in which relative paths are looked for, too."""

    @property
    def name(self) -> str:
        """The names of its files; "" where there are none."""
        paths = [one for one in self.sources if isinstance(one, str | Path)]
        return "+".join(Path(one).stem for one in paths)

    async def rows(self) -> list[EvaluationRow]:
        """All rows, with their ids. That there are none is a mistake, and said."""
        rows = identified(await self._adapted(await self._records()))
        if self.only is not None:
            rows = [row for row in rows if row.input_metadata.row_id in self.only]
        if self.preprocess is not None:
            rows = identified(_made(await _awaited(self.preprocess(rows))))
        if not rows:
            raise UsageError(f"the data set has no rows{self._why_none()}")
        return rows

    def _why_none(self) -> str:
        if self.limit == 0:
            return ": the most that are wanted is 0"
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
            found += await _taken(await self._opened(source), left)
        return found

    async def _opened(self, source: Source) -> "Iterable[object] | AsyncIterable[object]":
        if isinstance(source, str | Path):
            return await self._read(source)
        if callable(source) and not isinstance(source, type):
            source = await _awaited(source())
        if callable(load := getattr(source, "load", None)):
            return [row for part in await _awaited(load()) for row in part.rows]
        if isinstance(source, str | Path):
            return await self._read(source)
        if isinstance(source, Mapping | EvaluationRow | Task) or _is_conversation(source):
            return [source]
        if isinstance(source, Iterable | AsyncIterable):
            return source
        raise UsageError(f"{source!r:.200} is no data set: give a path, a list, or a function")

    async def _read(self, source: str | Path) -> Iterable[Found]:
        if is_url(source):
            return await asyncio.to_thread(fetched, str(source))
        return read(self._path(source))

    def _path(self, source: str | Path) -> Path:
        path = Path(source).expanduser()
        if self.beside is not None and not path.is_absolute() and not path.exists():
            return self.beside / path
        return path

    async def _adapted(self, records: list[object]) -> list[EvaluationRow]:
        raw = [one.fields if isinstance(one, Found) else one for one in records]
        if self.adapter is None or not all(isinstance(one, dict) for one in raw):
            return _made(records)
        return _made(await _awaited(self.adapter([one for one in raw if isinstance(one, dict)])))


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
    """The data sets that an evaluation names: each is an experiment of its own.

    Several `input_dataset`s are one, unless `combine_datasets` is off; of lists of rows, or of
    conversations, each is one.
    """
    given = {
        "input_dataset": input_dataset,
        "input_messages": input_messages,
        "input_rows": input_rows,
        "data_loaders": data_loaders,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        said = f"{' and '.join(named)} were given" if named else "none was given"
        raise UsageError(f"give one of {', '.join(given)}: {said}")
    parts = _parts(named[0], given[named[0]], combined=combine_datasets)
    return [
        Dataset(
            tuple(_lasting(one) for one in sources),
            adapter=dataset_adapter,
            preprocess=preprocess_fn,
            only=None if filtered_row_ids is None else frozenset(filtered_row_ids),
            limit=max_dataset_rows,
            beside=beside,
        )
        for sources in parts
    ]


def _parts(name: str, value: object, *, combined: bool) -> list[tuple[Source, ...]]:
    if name == "input_messages":
        return [(part,) for part in _nested(value)]
    several = _listed(value)
    if several is None:
        return [(value,)]
    if not several:
        raise UsageError(f"{name} is empty")
    if name == "input_rows":
        nested = all(isinstance(one, list | tuple) for one in several)
        return (
            [(tuple(one),) for one in several if isinstance(one, Iterable)]
            if nested
            else [(value,)]
        )
    if name == "input_dataset" and not all(_is_source(one) for one in several):
        return [(value,)]  # A list of rows.
    return [tuple(several)] if combined and name == "input_dataset" else [(one,) for one in several]


def _listed(value: object) -> Sequence[object] | None:
    return value if isinstance(value, list | tuple) else None


def _is_source(value: object) -> bool:
    """Whether it stands for many rows."""
    return (
        isinstance(value, str | Path)
        or callable(value)
        or not isinstance(value, Mapping | BaseModel | Task | list | tuple)
    )


def _nested(value: object) -> list[object]:
    """Conversations by data set: they may be given alone, in a list, or in lists of lists."""
    several = _listed(value)
    if not several:
        raise UsageError("input_messages wants conversations: lists of messages")
    if _is_conversation(several) or all(_is_conversation(one) for one in several):
        return [several]
    return [one for one in several if one is not None]


def _is_conversation(value: object) -> bool:
    several = _listed(value)
    return bool(several) and all(_is_message(one) for one in several or ())


def _is_message(value: object) -> bool:
    return hasattr(value, "role") or (isinstance(value, Mapping) and "role" in value)


def _lasting(source: Source) -> Source:
    return _Kept(source) if isinstance(source, Iterator | AsyncIterator) else source


class _Kept:
    """A generator that can be read again: what it gave is kept, and so is what it raised, or its
    later readers would take the rows before that for all."""

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


async def _taken(
    source: "Iterable[object] | AsyncIterable[object]", most: int | None
) -> list[object]:
    if isinstance(source, AsyncIterable):
        found: list[object] = []
        async for one in source:
            found.append(one)
            if len(found) == most:
                break
        return found
    return list(islice(source, most))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# --- rows


def _made(records: Iterable[object]) -> list[EvaluationRow]:
    return [as_row(one, where=f"row {number}") for number, one in enumerate(records, 1)]


def as_row(record: object, *, where: str = "a row") -> EvaluationRow:
    """A row of its own, from anything that says what a row is."""
    if isinstance(record, EvaluationRow):
        _check_roles(record, where)
        return record.model_copy(deep=True)
    if isinstance(record, Found):
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
    return _made(rows)


def _from_fields(fields: dict[str, Any], where: str) -> EvaluationRow:
    if not fields.keys() & _FIELDS:
        raise UsageError(
            f"{where} has no field of a row (messages, prompt, …), but {', '.join(fields)[:200]}: "
            "say what they mean with dataset_adapter="
        )
    if isinstance(prompt := fields.get("prompt"), str) and "messages" not in fields:
        fields = {**fields, "messages": [{"role": "user", "content": prompt}]}
    if isinstance(messages := fields.get("messages"), list | tuple):
        fields = {**fields, "messages": [_plain_message(one) for one in messages]}
    try:
        row = EvaluationRow.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"{where}: {_first_of(error)}") from error
    _check_roles(row, where)
    if row.input_metadata.row_id is None and isinstance(name := fields.get("id"), str | int):
        row.input_metadata.row_id = str(name)
    return row


def _check_roles(row: EvaluationRow, where: str) -> None:
    """Told here, where the line is known."""
    for at, message in enumerate(row.messages):
        if message.role not in ROLES:
            raise UsageError(
                f"{where}: messages[{at}]: role {message.role!r} is none of {', '.join(ROLES)}"
            )


def _plain_message(message: object) -> object:
    """Other libraries' messages say what they are in the same words."""
    if isinstance(message, BaseModel) and not isinstance(message, Message):
        return message.model_dump(mode="json", exclude_unset=True)
    return message


def _first_of(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def identified(rows: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """Gives every row its id. One that is there twice gets a number: no row is lost in another."""
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
                name = _free(name, seen[name], taken)
                taken.add(name)
        row.input_metadata.row_id = name
    return listed


def _free(name: str, number: int, taken: set[str | None]) -> str:
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
