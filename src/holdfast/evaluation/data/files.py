"""Files of data sets, read record by record: JSONL, JSON, Parquet, Arrow, and folders of them.

A folder is one that Hugging Face's `datasets` saved to disk, or one that holds files of these
kinds. Records come with the place that they have in their file; nothing is read before it is
asked for.
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
_BATCH = 1024
_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])")


class Found(NamedTuple):
    """A record and where it was found."""

    where: str
    fields: dict[str, Any]


def read(path: Path) -> Iterator[Found]:
    """The records of a file or a folder, in order."""
    if path.is_dir():
        for file in _files_of(path):
            yield from _read_file(file)
        return
    if not path.exists():
        hint = "" if path.suffix else '; a string is a path: write a prompt as {"prompt": …}'
        raise UsageError(
            f"data set {path} does not exist; a relative path is looked for in the current folder "
            f"and beside the test file{hint}"
        )
    yield from _read_file(path)


def _read_file(path: Path) -> Iterator[Found]:
    kind = path.suffix.lower()
    if kind in (".parquet", ".arrow"):
        return _tables(path, _parquet(path) if kind == ".parquet" else _arrow(path))
    try:
        lines = _lines(path)
        return _json(path, lines) if kind == ".json" else _jsonl(path, lines)
    except OSError as error:
        raise UsageError(f"data set {path} cannot be read: {error.strerror}") from error


# --- JSON


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            # Some editors begin a file with a byte order mark.
            yield line if number else line.removeprefix(b"\xef\xbb\xbf")


def _jsonl(path: Path, lines: Iterable[bytes]) -> Iterator[Found]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _record(_decoded(line, f"{path}:{number}"), f"{path}:{number}")


def _json(path: Path, lines: Iterable[bytes]) -> Iterator[Found]:
    """A list of objects, or one; or, as many have it, JSONL under another name."""
    text = b"".join(lines)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield from _jsonl(path, text.split(b"\n"))
        return
    for number, value in enumerate(found if isinstance(found, list) else [found], 1):
        yield _record(value, f"{path}, item {number}")


def _decoded(text: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from error


def _record(value: object, where: str) -> Found:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: wants a JSON object, found {type(value).__name__}")
    return Found(where, value)


# --- tables


def _tables(path: Path, batches: Iterable["pyarrow.RecordBatch"]) -> Iterator[Found]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield Found(f"{path}, row {number}", _without_nulls(row))


def _parquet(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    _needs_pyarrow(path)
    import pyarrow.parquet

    with _opened(path, lambda: pyarrow.parquet.ParquetFile(path)) as file:
        yield from file.iter_batches(_BATCH)


def _arrow(path: Path) -> Iterator["pyarrow.RecordBatch"]:
    """`datasets` writes streams; others write files with an index at their end."""
    _needs_pyarrow(path)
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        reading = pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream
        with _opened(path, lambda: reading(source)) as table:
            found = (
                (table.get_batch(index) for index in range(table.num_record_batches))
                if is_file
                else table
            )
            for batch in found:
                yield from (batch.slice(at, _BATCH) for at in range(0, batch.num_rows, _BATCH))


def _opened(path: Path, opening: Any) -> Any:
    import pyarrow

    try:
        return opening()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"data set {path} cannot be read: {error}") from error


def _needs_pyarrow(path: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{path} needs pyarrow: pip install '.[parquet]' (in the clone)"
        ) from error


def _without_nulls(value: Any) -> Any:
    """A table has every field in every row: null is what was not there. A content may be null."""
    if isinstance(value, Mapping):
        return {
            name: _without_nulls(one)
            for name, one in value.items()
            if one is not None or name == "content"
        }
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


# --- folders


def _files_of(folder: Path) -> list[Path]:
    splits = folder / "dataset_dict.json"
    if splits.exists():
        names = _decoded(splits.read_bytes(), str(splits)).get("splits", [])
        return _files_of(folder / _only_split(folder, names))
    state = folder / "state.json"
    if state.exists():
        listed = _decoded(state.read_bytes(), str(state)).get("_data_files", [])
        return [folder / one["filename"] for one in listed]
    files = sorted(one for one in folder.rglob("*") if one.suffix.lower() in _SUFFIXES)
    files = [one for one in files if one.name != "dataset_info.json"]
    if not files:
        raise UsageError(
            f"folder {folder} holds no data set: no files that end in {', '.join(_SUFFIXES)}"
        )
    _only_split(folder, [_split_of(file.relative_to(folder)) for file in files])
    return files


def _split_of(file: Path) -> str:
    """By the name of the file, or of a folder on the way."""
    for part in reversed(file.parts):
        if found := _SPLIT.match(part):
            return found.group(1)
    return ""


def _only_split(folder: Path, names: Iterable[str]) -> str:
    different = sorted(set(names))
    if len(different) != 1:
        said = ", ".join(name or "files without one" for name in different) or "none"
        raise UsageError(
            f"{folder} has several splits ({said}): name one by its folder or its files"
        )
    return different[0]
