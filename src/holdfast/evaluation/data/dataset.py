"""A Dataset is the source of an evaluation's rows.

It reads every source of tasks (`holdfast.tasks`). Rows may have eval-protocol's form, or be plain
prompts, conversations or dicts. Every row gets a unique id that is the same each time it is read.
Equal rows get ids by their order.
"""

import inspect
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
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from holdfast.engine.export.row_messages import HELD
from holdfast.evaluation.data.checks import (
    check_faithful,
    check_messages,
    explain,
    own_id,
    with_messages,
)
from holdfast.evaluation.rows.convert import row_from, task_of
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.records.encoding.declared import function_name
from holdfast.records.errors import UsageError
from holdfast.records.task import (
    Task,
    distinct_ids,
    is_conversation,
    likely_prompt,
    row_name,
    with_ground_truth,
)
from holdfast.tasks.columns import Columns, check_columns, with_fields
from holdfast.tasks.files import FileRecord
from holdfast.tasks.sources import open_source, rows_of, take

_TEXTS = ("tools", "input_metadata", "rollout_status", "ground_truth", "evaluation_result")
OTHERS = "others"
"""The name of the column that holds all values without a column of their own."""
Source = object
"""A path, rows, messages, a generator, or a function that returns any of these."""
Adapter = Callable[[list[dict[str, Any]]], "Iterable[object] | Awaitable[Iterable[object]]"]
Preprocess = Callable[[list[EvaluationRow]], "list[EvaluationRow] | Awaitable[list[EvaluationRow]]"]

_FIELDS = frozenset({*EvaluationRow.model_fields, "prompt"})


@dataclass(frozen=True)
class Dataset:
    """One data set. Each call of `rows` reads it again, so callers may change the rows."""

    sources: tuple[Source, ...]
    columns: Columns | None = None
    """Which column is which field of a row."""
    adapter: Adapter | None = None
    preprocess: Preprocess | None = None
    only: frozenset[str] | None = None
    """The ids of the selected rows; None selects all rows."""
    limit: int | None = None
    """The largest number of records to read, from the first one on."""
    beside: Path | None = None
    """The folder in which a relative path is looked up if the current folder does not have it."""

    @property
    def name(self) -> str:
        """The names of the files without their endings, joined with `+`. It is "" if no source is a
        file."""
        paths = [path for path in self.sources if isinstance(path, str | Path)]
        return "+".join(Path(path).stem for path in paths)

    async def rows(self) -> list[EvaluationRow]:
        """Returns all rows, with their ids. Raises `UsageError` if there are none."""
        rows = assign_ids(await self._adapt(await self._records()))
        if self.only is not None:
            rows = [row for row in rows if row.input_metadata.row_id in self.only]
        if self.preprocess is not None:
            prepared = await _maybe_await(self.preprocess(rows))
            rows = assign_ids(_to_rows(returned_rows(prepared, "preprocess_fn", self.preprocess)))
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
        records: list[object] = []
        for source in self.sources:
            left = None if self.limit is None else self.limit - len(records)
            if left == 0:
                break
            records += await take(await self._open(source), left)
        return self._with_fields(records) if self.columns else records

    def _with_fields(self, records: list[object]) -> list[object]:
        return [
            FileRecord(*with_fields(record, self.columns or {}, where=f"row {number}"))
            for number, record in enumerate(records, 1)
        ]

    async def _open(self, source: Source) -> "Iterable[object] | AsyncIterable[object]":
        if isinstance(source, str | Path):
            return await self._read(source)
        if callable(source) and not isinstance(source, type):
            source = await _maybe_await(source())
        if callable(load := getattr(source, "load", None)):
            return [row for part in await _maybe_await(load()) for row in part.rows]
        if isinstance(source, str | Path):
            return await self._read(source)
        if isinstance(source, EvaluationRow | Task) or _is_row(source) or is_conversation(source):
            return [source]
        return rows_of(source)

    async def _read(self, source: str | Path) -> "Iterable[object] | AsyncIterable[object]":
        hint = "; a relative path is looked for in the current folder and beside the test file"
        if not Path(source).suffix:
            hint += '; a string is a path: write a prompt as {"prompt": …}'
        return await open_source(self._path(source), hint=hint)

    def _path(self, source: str | Path) -> str | Path:
        """Returns the path of a source. A relative path that does not exist in the current folder
        is taken relative to `beside`. Absolute paths, web addresses and `hf:` names are returned
        unchanged."""
        file, _, name = str(source).partition(".py:")
        path = Path(f"{file}.py" if name else source).expanduser()
        is_elsewhere = str(source).startswith(("http://", "https://", "hf:"))
        if self.beside is None or path.is_absolute() or path.exists() or is_elsewhere:
            return source
        return f"{self.beside / path}:{name}" if name else self.beside / path

    async def _adapt(self, records: list[object]) -> list[EvaluationRow]:
        raw = [record.fields if isinstance(record, FileRecord) else record for record in records]
        if self.adapter is None or not all(isinstance(record, dict) for record in raw):
            return _to_rows(records)
        rows = self.adapter([record for record in raw if isinstance(record, dict)])
        return _to_rows(returned_rows(await _maybe_await(rows), "dataset_adapter", self.adapter))


def datasets_of(
    *,
    input_dataset: object = None,
    input_messages: object = None,
    input_rows: object = None,
    data_loaders: object = None,
    columns: Columns | None = None,
    dataset_adapter: Adapter | None = None,
    preprocess_fn: Preprocess | None = None,
    filtered_row_ids: Iterable[str] | None = None,
    max_dataset_rows: int | None = None,
    combine_datasets: bool = True,
    beside: Path | None = None,
) -> list[Dataset]:
    """Returns the data sets of an evaluation. Each data set is its own experiment.

    Several `input_dataset`s form one data set, unless `combine_datasets` is off. Each list of rows,
    or of conversations, is one data set. Raises `UsageError` unless exactly one kind of input is
    given, or if a function cannot be called with rows.
    """
    check_columns(columns or {})
    if dataset_adapter is not None:
        check_callable("dataset_adapter", dataset_adapter, "the list of records")
    if preprocess_fn is not None:
        check_callable("preprocess_fn", preprocess_fn, "the list of rows")
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
            columns=columns,
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
    """Returns whether the value is a source of many rows."""
    return (
        isinstance(value, str | Path)
        or callable(value)
        or not isinstance(value, Mapping | BaseModel | Task | list | tuple)
    )


def _conversation_sets(value: object) -> list[object]:
    """Returns the data sets of `input_messages`. One conversation, or a list of conversations, is
    one data set. In a list of such lists, each inner list is a data set."""
    items = _as_list(value)
    if not items:
        raise UsageError("input_messages wants conversations: lists of messages")
    if is_conversation(items) or all(is_conversation(conversation) for conversation in items):
        return [items]
    return [conversation for conversation in items if conversation is not None]


def _is_row(value: object) -> bool:
    """Returns whether the value is one row. A mapping from the names of splits to tables, as in
    `datasets`, is not a row."""
    return isinstance(value, Mapping) and not any(
        hasattr(part, "column_names") for part in value.values()
    )


def _reusable(source: Source) -> Source:
    return _ReusableIterator(source) if isinstance(source, Iterator | AsyncIterator) else source


class _ReusableIterator:
    """A generator that can be read several times. If the generator raises an error, every reader
    gets the items before the error, and then the error."""

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


async def _maybe_await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# --- functions of the user's


def check_callable(argument: str, function: object, *parameters: str) -> None:
    """Raises `UsageError` if the function cannot be called with these positional arguments."""
    if not callable(function):
        wanted = f" of {' and '.join(parameters)}" if parameters else ""
        raise UsageError(f"{argument} wants a function{wanted}, not {function!r:.100}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # Some built-in functions have no signature.
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise UsageError(
            f"{argument} {function_name(function)!r} is called with "
            f"{' and '.join(parameters) or 'nothing'}, and takes {signature}: {error}"
        ) from None


def returned_rows(returned: object, argument: str, function: object) -> Iterable[object]:
    """Returns the rows that the function returned. Raises `UsageError` if the value is not a list
    of rows."""
    # These can be iterated, but not over rows.
    is_one = isinstance(returned, str | bytes | Mapping | BaseModel)
    if is_one or not isinstance(returned, Iterable):
        raise UsageError(
            f"{argument} {function_name(function)!r} returned {returned!r:.100}; "
            "return a list of rows"
        )
    return returned


# --- rows


def _to_rows(records: Iterable[object]) -> list[EvaluationRow]:
    return [as_row(record, where=f"row {number}") for number, record in enumerate(records, 1)]


def as_row(record: object, *, where: str = "a row") -> EvaluationRow:
    """Makes a new row from a row, a record, a task, a dict, a model, a prompt or a conversation.
    Raises `UsageError`, which names `where`."""
    if isinstance(record, EvaluationRow):
        check_messages(record, where)
        check_faithful(record, where)
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
    if is_conversation(record):
        return _from_fields({"messages": record}, where)
    raise UsageError(f"{where}: {record!r:.200} is not a row: give an EvaluationRow or a dict")


def default_dataset_adapter(rows: list[dict[str, Any]]) -> list[EvaluationRow]:
    """Reads each dict as a row."""
    return _to_rows(rows)


def _from_fields(fields: dict[str, Any], where: str) -> EvaluationRow:
    if not fields.keys() & _FIELDS:
        raise UsageError(
            f"{where} has no field of a row (messages, prompt, …), but {', '.join(fields)[:200]}: "
            f"say which is the prompt, columns={{'prompt': {likely_prompt(list(fields))!r}}}, or "
            "give dataset_adapter=, a function that turns the list of these dicts into a list of "
            'rows, such as {"messages": …, "ground_truth": …}'
        )
    check_faithful(fields, where)
    fields = with_messages(with_ground_truth(from_columns(fields)), where)
    if isinstance(messages := fields.get("messages"), list | tuple):
        fields = {**fields, "messages": [_plain_message(message) for message in messages]}
    try:
        row = EvaluationRow.model_validate(fields)
    except ValidationError as error:
        raise explain(error, fields, where) from error
    check_messages(row, where)
    if row.input_metadata.row_id is None:
        row.input_metadata.row_id = own_id(fields, where)
    return row


def _plain_message(message: object) -> object:
    """Returns a message of another library's class, which has the same fields, as a dict."""
    if isinstance(message, BaseModel) and not isinstance(message, Message):
        return message.model_dump(mode="json", exclude_unset=True)
    return message


def assign_ids(rows: Iterable[EvaluationRow]) -> list[EvaluationRow]:
    """Sets every row's id. If an id occurs twice, the later rows get a number appended to it."""
    listed = list(rows)
    ids = [row.input_metadata.row_id for row in listed]
    names = [
        (name or _derived_id(row, number), bool(name))
        for number, (row, name) in enumerate(zip(listed, ids, strict=True), 1)
    ]
    for row, name in zip(listed, distinct_ids(names), strict=True):
        row.input_metadata.row_id = name
    return listed


def _derived_id(row: EvaluationRow, number: int) -> str:
    """Returns the id that `holdfast run` would give to the same row. Fields that only rows have,
    and a `prompt` in addition to messages, do not change the id."""
    task = task_of(row, where=f"row {number}: ")
    columns = {k: v for k, v in task.metadata.items() if k not in ("prompt", HELD)}
    return row_name(msgspec.structs.replace(task, metadata=columns))


# --- rows of a table, as they were before they were columns


def from_columns(fields: dict[str, Any]) -> dict[str, Any]:
    """Restores the fields of a row that an export wrote as a table, with JSON texts in its columns.
    Returns the fields of other rows unchanged."""
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
    columns = {
        name: _read_all(value) if isinstance(value, Mapping) else _read(value)
        for name, value in fields.items()
        if value is not None
    }
    return _with_others(columns)


def _with_others(fields: dict[str, Any]) -> dict[str, Any]:
    others = _read(fields.get(OTHERS))
    if not isinstance(others, dict):
        return fields
    return {name: value for name, value in fields.items() if name != OTHERS} | others


def _read(value: Any) -> Any:
    """Returns the value of a JSON text. A text that is not JSON stays text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
