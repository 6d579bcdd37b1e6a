"""The sources that rows can come from, and how each is opened.

A source is a path, a URL, `hf:NAME`, `FILE.py:FUNCTION`, a function, a generator, a list, a table
of pandas, pyarrow or `datasets`, or a list of such sources. Rows of files are `FileRecord`s, with
their position. Other rows are passed on unchanged.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from holdfast.records.errors import UsageError
from holdfast.records.foreign import headline_of
from holdfast.records.task import Task, is_conversation
from holdfast.rollout.code.load import UserCodeError, format_error, load_module, split
from holdfast.tasks.files import SUFFIXES, read, table_record
from holdfast.tasks.harbor import is_harbor, read_harbor
from holdfast.tasks.hugging_face import is_hub_name, load_hub, one_split
from holdfast.tasks.urls import fetch, is_url

Rows = Iterable[object] | AsyncIterable[object]
DEFAULT_FUNCTION = "tasks"
"""The function of a Python file that makes its rows, if the source names none."""
_PYTHON = re.compile(r"\.py(:\w+)?$")
_FILE_NAME = re.compile(rf"\S+({'|'.join(map(re.escape, SUFFIXES))})", re.IGNORECASE)


def is_reference(source: object) -> bool:
    """Returns whether the value names a place that has rows: a path, a URL, a data set on the hub,
    or a function in a file. A prompt is not a reference."""
    if isinstance(source, PurePath):
        return True
    if not isinstance(source, str):
        return False
    named = is_url(source) or is_hub_name(source) or is_harbor(source) or _PYTHON.search(source)
    return bool(named) or _FILE_NAME.fullmatch(source) is not None


async def open_source(source: object, *, what: str = "data set", hint: str = "") -> Rows:
    """Returns the rows of a source. A string is always a reference. The rows of a list are not
    checked here.

    `what` and `hint` are used in the error about a file that does not exist.
    """
    if isinstance(source, str | PurePath):
        return await _open_reference(source, what=what, hint=hint)
    if isinstance(source, Awaitable):
        source = await source
    if callable(source) and not isinstance(source, type) and not isinstance(source, Iterable):
        name = str(getattr(source, "__name__", what))
        _check_takes_nothing(source, name)
        source = _check_made(await _maybe_await(source()), by=name)
        if isinstance(source, str | PurePath):
            return await _open_reference(source, what=what, hint=hint)
    return rows_of(source, what=what)


def rows_of(source: object, *, what: str = "data set") -> Rows:
    """Returns the rows of a Python value."""
    if (table := _rows_of_table(source, what)) is not None:
        return table
    if is_conversation(source):
        return [source]
    if isinstance(source, Mapping | Task):
        raise UsageError("tasks is one task, not a list of tasks; write tasks=[…] around it")
    if isinstance(source, set | frozenset):
        raise UsageError(f"a {what} is a list: a set has no order")
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable | AsyncIterable):
        raise UsageError(
            f"{source!r:.100} (of type {type(source).__name__}) is not a {what}; give a path, a "
            "list of tasks, or a function that returns one"
        )
    return source


async def take(rows: Rows, most: int | None = None) -> list[object]:
    """Returns the first `most` rows, or all rows."""
    if not isinstance(rows, AsyncIterable):
        return list(islice(rows, most))
    taken: list[object] = []
    if most == 0:
        return taken
    async for row in rows:
        taken.append(row)
        if len(taken) == most:
            break
    return taken


async def _open_reference(source: str | PurePath, *, what: str, hint: str) -> Rows:
    text = str(source)
    if is_url(text):
        return await asyncio.to_thread(fetch, text)
    if is_hub_name(text):
        return load_hub(text)
    if is_harbor(text):
        return read_harbor(text)
    if _PYTHON.search(text):
        return await _open_function(text, what=what)
    return read(Path(text).expanduser(), what=what, hint=hint)


# --- functions of a file


async def _open_function(reference: str, *, what: str) -> Rows:
    """Returns the rows from `FILE.py:FUNCTION`. The function may be async, a generator, or
    return a path.
    """
    path, name = split(reference)
    path = path.expanduser()
    function = _function_in(load_module(path), path, name)
    with _blaming(reference):
        made = await _maybe_await(function()) if callable(function) else function
    _check_made(made, by=reference)
    if isinstance(made, str | PurePath):
        return await _open_reference(made, what=what, hint=f" ({reference} returned it)")
    return _guarded(rows_of(made, what=what), reference)


async def _guarded(rows: Rows, reference: str) -> AsyncIterator[object]:
    """Yields the rows, and reports an error of the user's function with the user's traceback. A
    generator raises its errors only when its rows are read."""
    with _blaming(reference):
        if isinstance(rows, AsyncIterable):
            async for row in rows:
                yield row
        else:
            for row in rows:
                yield row


@contextmanager
def _blaming(reference: str) -> Iterator[None]:
    """Reports an error of the user's function with the user's traceback."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{reference} raised {headline_of(error)}", format_error(error)
        ) from error


def _function_in(module: ModuleType, path: Path, name: str | None) -> Any:
    wanted = name or DEFAULT_FUNCTION
    if not hasattr(module, wanted):
        functions = [
            function
            for function, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        listed = ", ".join(functions) or "none"
        raise UsageError(f"{path} has no {wanted!r} to make tasks; its functions: {listed}")
    result = getattr(module, wanted)
    if callable(result):
        _check_takes_nothing(result, f"{path}:{wanted}")
    return result


def _check_made(made: Any, *, by: str) -> Any:
    """Returns a function's return value. Raises `UsageError` for None."""
    if made is None:
        raise UsageError(f"{by} returned None: let it return a list of tasks, or yield them")
    return made


def _check_takes_nothing(function: Any, where: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(f"{where} is called without arguments to make tasks: {error}") from None
    except ValueError:
        pass  # Some built-in callables have no signature.


# --- tables


def _rows_of_table(source: Any, what: str) -> list[object] | None:
    """Returns the rows of a table of pandas, polars, pyarrow or `datasets`, or None for
    anything else.
    """
    if isinstance(source, Mapping) and source and all(_is_table(part) for part in source.values()):
        return _rows_of_table(one_split(source, what), what)
    convert = getattr(source, "to_pylist", None) or getattr(source, "to_dicts", None)
    if callable(convert):
        rows = convert()
    elif hasattr(source, "iterrows"):
        rows = source.to_dict("records")
    elif _is_table(source):
        rows = source
    else:
        return None
    return [table_record(row, f"row {number}") for number, row in enumerate(rows, 1)]


def _is_table(value: object) -> bool:
    """Returns whether the value is a table of `datasets`, which is read row by row and knows
    its columns.
    """
    return hasattr(value, "column_names") and isinstance(value, Iterable)


async def _maybe_await(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value
