"""Reads the files of data sets record by record: JSONL, JSON, Parquet, Arrow, and folders of them.

A folder is one saved by Hugging Face's `datasets`, or one with files of these kinds. Records come
with their position in the file. Reading is lazy.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.records.errors import UsageError

if TYPE_CHECKING:
    import pyarrow

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
_BATCH_ROWS = 1024
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])")


class FileRecord(NamedTuple):
    """A record and its position: `file:line`."""

    where: str
    fields: dict[str, Any]


def read(path: Path) -> Iterator[FileRecord]:
    """The records of a file or a folder, in order. Raises `UsageError` if it cannot be read."""
    if path.is_dir():
        for file in _data_files(path):
            yield from _read_file(file)
        return
    if not path.exists():
        hint = "" if path.suffix else '; a string is a path: write a prompt as {"prompt": …}'
        raise UsageError(
            f"data set {path} does not exist; a relative path is looked for in the current folder "
            f"and beside the test file{hint}"
        )
    yield from _read_file(path)


def _read_file(path: Path) -> Iterator[FileRecord]:
    kind = path.suffix.lower()
    if kind in (".parquet", ".arrow"):
        return _read_tables(path, _read_parquet(path) if kind == ".parquet" else _read_arrow(path))
    try:
        lines = _read_lines(path)
        return _read_json(path, lines) if kind == ".json" else _read_jsonl(path, lines)
    except OSError as error:
        raise UsageError(f"data set {path} cannot be read: {error.strerror}") from error


# --- JSON


def _read_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            # Some editors begin a file with a byte order mark.
            yield line if number else line.removeprefix(b"\xef\xbb\xbf")


def _read_jsonl(path: Path, lines: Iterable[bytes]) -> Iterator[FileRecord]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _to_record(_decode(line, f"{path}:{number}"), f"{path}:{number}")


def _read_json(path: Path, lines: Iterable[bytes]) -> Iterator[FileRecord]:
    """A list of objects, one object, or (as often) JSONL under another name."""
    text = b"".join(lines)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _read_jsonl(path, text.split(b"\n"))
        return
    for number, value in enumerate(found if isinstance(found, list) else [found], 1):
        yield _to_record(value, f"{path}, item {number}")


def _decode(text: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from error


def _to_record(value: object, where: str) -> FileRecord:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: wants a JSON object, found {type(value).__name__}")
    return FileRecord(where, value)


# --- tables


def _read_tables(path: Path, batches: Iterable["pyarrow.RecordBatch"]) -> Iterator[FileRecord]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield FileRecord(f"{path}, row {number}", _without_nulls(row))


def _read_parquet(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    _require_pyarrow(path)
    import pyarrow.parquet

    with _open(path, lambda: pyarrow.parquet.ParquetFile(path)) as file:
        yield from file.iter_batches(_BATCH_ROWS)


def _read_arrow(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    """`datasets` writes streams; others write files with an index at their end."""
    _require_pyarrow(path)
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        reader = pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream
        with _open(path, lambda: reader(source)) as table:
            found = (
                (table.get_batch(index) for index in range(table.num_record_batches))
                if is_file
                else table
            )
            for batch in found:
                yield from (
                    batch.slice(at, _BATCH_ROWS) for at in range(0, batch.num_rows, _BATCH_ROWS)
                )


def _open(path: Path, open_file: Any) -> Any:
    import pyarrow

    try:
        return open_file()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"data set {path} cannot be read: {error}") from error


def _require_pyarrow(path: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{path} needs pyarrow: pip install '.[parquet]' (in the clone)"
        ) from error


def _without_nulls(value: Any) -> Any:
    """A table has every field in every row: null stands for a missing one, but in `content`."""
    if isinstance(value, Mapping):
        return {
            name: _without_nulls(item)
            for name, item in value.items()
            if item is not None or name == "content"
        }
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


# --- folders


def _data_files(folder: Path) -> list[Path]:
    splits = folder / "dataset_dict.json"
    if splits.exists():
        names = _decode(splits.read_bytes(), str(splits)).get("splits", [])
        return _data_files(folder / _require_one_split(folder, names))
    state = folder / "state.json"
    if state.exists():
        listed = _decode(state.read_bytes(), str(state)).get("_data_files", [])
        return [folder / file["filename"] for file in listed]
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _SUFFIXES and file.name != "dataset_info.json"
    )
    if not files:
        raise UsageError(
            f"folder {folder} holds no data set: no files that end in {', '.join(_SUFFIXES)}"
        )
    _require_one_split(folder, [_split_of(file.relative_to(folder)) for file in files])
    return files


def _split_of(file: Path) -> str:
    """The split in the name of the file, or of a folder above it."""
    for part in reversed(file.parts):
        if found := _SPLIT.match(part):
            return found.group(1)
    return ""


def _require_one_split(folder: Path, names: Iterable[str]) -> str:
    different = sorted(set(names))
    if len(different) != 1:
        listed = ", ".join(name or "files without one" for name in different) or "none"
        raise UsageError(
            f"{folder} has several splits ({listed}): name one by its folder or its files"
        )
    return different[0]
