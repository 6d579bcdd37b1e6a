"""Reads the files of data sets record by record: JSONL, JSON, CSV, Parquet, Arrow, and folders.

A folder is either saved by Hugging Face's `datasets`, or holds files of these kinds. Records come
with their position in the file, and in JSON's types. Reading is lazy.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.extras import needed_by
from holdfast.records.errors import UsageError
from holdfast.records.task import PlainRow, decode_row
from holdfast.tasks.csv_files import read_csv

if TYPE_CHECKING:
    import pyarrow

_TABLES = (".parquet", ".arrow")
_COLUMNS = (".csv", ".tsv")
SUFFIXES = (".jsonl", ".ndjson", ".json", *_COLUMNS, *_TABLES)
_BATCH_ROWS = 1024
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])")
_NESTED = ("messages", "tools", "metadata")
"""Columns that a table without nesting holds as JSON text."""


class FileRecord(NamedTuple):
    """A record and its position, `file:line`."""

    where: str
    fields: dict[str, Any]
    empty: tuple[str, ...] = ()
    """Columns of the table in which this row has no value."""


def read(path: Path, *, what: str = "data set", hint: str = "") -> Iterator[FileRecord]:
    """Yields the records of a file or folder, in order. Raises `UsageError` if it cannot be read.

    The error message uses `what` to name the kind of file, and `hint` if the file does not exist.
    """
    if path.is_dir():
        for file in _data_files(path):
            yield from _read_file(file, what)
        return
    if not path.exists():
        raise UsageError(f"{what} {path} does not exist{hint}")
    yield from _read_file(path, what)


def _read_file(path: Path, what: str) -> Iterator[FileRecord]:
    kind = path.suffix.lower()
    if kind in _TABLES:
        yield from _read_tables(path, _batches(path))
        return
    try:
        if kind in _COLUMNS:
            for where, row, empty in read_csv(path, path.read_bytes()):
                yield FileRecord(where, _with_nested(row, where), empty)
        elif kind == ".json":
            yield from _read_json(path, path.read_bytes())
        else:
            yield from _read_jsonl(path, _read_lines(path))
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from error


# --- JSON


def _read_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            # Some editors begin a file with a byte order mark.
            yield line if number else line.removeprefix(b"\xef\xbb\xbf")


def _read_jsonl(path: Path, lines: Iterable[bytes]) -> Iterator[FileRecord]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _line(path, number, line)


def _line(path: Path, number: int, line: bytes) -> FileRecord:
    where = f"{path}:{number}"
    try:
        return _to_record(decode_row(line, where=where), where)
    except UsageError as error:
        if number == 1 and line.lstrip().startswith(b"["):
            raise UsageError(f"{error}; a file with one list of tasks ends in .json") from error
        if line.strip() == b"{" and path.suffix.lower() != ".json":
            raise UsageError(
                f"{error}; write each task on one line, or a list of them, indented or not, into a "
                "file that ends in .json"
            ) from error
        if path.suffix.lower() in SUFFIXES:
            raise
        raise UsageError(f"{error}; other kinds of files end in {', '.join(SUFFIXES)}") from error


def _read_json(path: Path, text: bytes) -> Iterator[FileRecord]:
    """Reads a list of objects, or one object. Also reads JSONL, which often has the name
    `.json`.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if text.lstrip().startswith(b"["):
            decoded = decode_row(text, where=str(path))  # Raises, with the reason.
        else:
            yield from _read_jsonl(path, text.split(b"\n"))
            return
    for number, value in enumerate(decoded if isinstance(decoded, list) else [decoded], 1):
        yield _to_record(value, f"{path}, item {number}")


def _to_record(value: object, where: str) -> FileRecord:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: wants a JSON object, found {type(value).__name__}")
    return FileRecord(where, PlainRow(value))


# --- tables


def _read_tables(path: Path, batches: Iterable["pyarrow.RecordBatch"]) -> Iterator[FileRecord]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield table_record(row, f"{path}, row {number}")


def table_record(row: Mapping[str, object], where: str) -> FileRecord:
    """Converts a row of a table to JSON's types. Null and NaN stand for a missing value,
    because a table has every column in every row.
    """
    plain = _plain_row(row, where)
    return FileRecord(where, plain, tuple(str(name) for name in row if str(name) not in plain))


def _plain_row(row: Mapping[str, object], where: str) -> PlainRow:
    try:
        # Times, decimal numbers and bytes become texts.
        plain = msgspec.to_builtins(_without_nulls(row), str_keys=True, enc_hook=_as_text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {error}; a task holds texts, numbers, lists and dicts") from (
            error
        )
    return _with_nested(plain, where)


def _as_text(value: Any) -> str:
    if callable(as_iso := getattr(value, "isoformat", None)):
        return str(as_iso())  # A pandas timestamp.
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _batches(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_arrow(path)


def _read_parquet(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    with needed_by(str(path), extra="parquet"):
        import pyarrow.parquet

    with _open(path, lambda: pyarrow.parquet.ParquetFile(path)) as file:
        yield from file.iter_batches(_BATCH_ROWS)


def _read_arrow(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    """Yields the batches of an Arrow stream, which `datasets` writes, or of an Arrow file with
    an index at its end.
    """
    with needed_by(str(path), extra="parquet"):
        import pyarrow

    with _open(path, lambda: pyarrow.memory_map(str(path))) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream
        with _open(path, lambda: reader(source)) as table:
            batches = (
                (table.get_batch(index) for index in range(table.num_record_batches))
                if is_file
                else table
            )
            for batch in batches:
                yield from (
                    batch.slice(at, _BATCH_ROWS) for at in range(0, batch.num_rows, _BATCH_ROWS)
                )


def _open(path: Path, open_file: Any) -> Any:
    import pyarrow

    try:
        return open_file()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"data set {path} cannot be read: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Removes nulls, except in `content`, where null means that a message has no content."""
    if isinstance(value, Mapping):
        return {
            name: _without_nulls(item)
            for name, item in value.items()
            if not _is_missing(item) or name == "content"
        }
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    if callable(to_list := getattr(value, "tolist", None)):
        return _without_nulls(to_list())  # NumPy's arrays and numbers.
    return None if _is_missing(value) else value


def _is_missing(value: object) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _with_nested(row: Mapping[str, object], where: str) -> PlainRow:
    """Decodes messages, tools and metadata, which a flat table holds as JSON text."""
    row = PlainRow(row)
    for name in _NESTED:
        text = row.get(name)
        if isinstance(text, str):
            row[name] = _decode_cell(text, name, where)
    if isinstance(messages := row.get("messages"), list):
        row["messages"] = [_whole_message(message) for message in messages]
    return row


def _whole_message(message: object) -> object:
    """Restores a message that was stored in a table column with a fixed type
    (`engine/export/nested.py`).

    A content in parts moves from `parts` back to `content`, and fields in `others` become fields of
    the message again.
    """
    if not isinstance(message, dict) or not message.keys() & {"parts", "others"}:
        return message
    whole = _with_others(message)
    if isinstance(parts := whole.pop("parts", None), list) and whole.get("content") is None:
        whole["content"] = [_with_others(part) for part in parts]
    return whole


def _with_others(fields: dict[str, Any]) -> dict[str, Any]:
    others = fields.get("others")
    if not isinstance(others, str) or not others.startswith("{"):
        return dict(fields)
    kept = {name: value for name, value in fields.items() if name != "others"}
    return {**kept, **msgspec.json.decode(others)}


def _decode_cell(text: str, name: str, where: str) -> object:
    if text.lstrip().startswith(("[", "{")):
        return decode_row(text.encode(), where=f"{where}: {name}")
    if name == "messages":
        raise UsageError(
            f"{where}: messages is a text, {text!r:.60}; write a JSON list of messages into it, or "
            "call the column prompt"
        )
    return text


# --- folders


def _data_files(folder: Path) -> list[Path]:
    splits = folder / "dataset_dict.json"
    if splits.exists():
        names = _read_state(splits).get("splits", [])
        return _data_files(folder / _require_one_split(folder, names))
    state = folder / "state.json"
    if state.exists():
        listed = _read_state(state).get("_data_files", [])
        return [folder / file["filename"] for file in listed]
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES and file.name != "dataset_info.json"
    )
    if not files:
        raise UsageError(
            f"folder {folder} holds no data set: no files that end in {', '.join(SUFFIXES)}"
        )
    _require_one_split(folder, [_split_of(file.relative_to(folder)) for file in files])
    return files


def _read_state(path: Path) -> dict[str, Any]:
    state = decode_row(path.read_bytes(), where=str(path))
    if not isinstance(state, dict):
        raise UsageError(f"{path}: wants a JSON object, found {type(state).__name__}")
    return state


def _split_of(file: Path) -> str:
    """Returns the split in the name of the file, or of a folder above it; "" if there is none."""
    for part in reversed(file.parts):
        if match := _SPLIT.match(part):
            return match.group(1)
    return ""


def _require_one_split(folder: Path, names: Iterable[str]) -> str:
    different = sorted(set(names))
    if len(different) != 1:
        listed = ", ".join(name or "files without one" for name in different) or "none"
        raise UsageError(
            f"{folder} has several splits ({listed}): name one by its folder or its files"
        )
    return different[0]
