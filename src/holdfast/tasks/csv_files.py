"""Reads CSV files, whose first line names the columns.

Every value is a text, because a CSV file has no numbers. An empty cell is a missing value.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from holdfast.records.encoding.text_files import decode_text
from holdfast.records.errors import UsageError

DELIMITERS = (",", ";", "\t")
"""The delimiters that are recognized. Spreadsheets use semicolons if numbers contain commas."""
_KNOWN = frozenset({"id", "messages", "prompt", "tools", "ground_truth", "metadata"})


Row = tuple[str, dict[str, object], tuple[str, ...]]
"""A row: its position (`file:line`), its values, and the columns in which its cell is empty."""


def read_csv(path: Path, data: bytes) -> Iterator[Row]:
    """Yields the rows of a CSV file. Raises `UsageError` for the first bad line."""
    text = decode_text(data, where=str(path))
    # Strict: otherwise a quote that never closes would take all later rows into its cell.
    file = io.StringIO(text, newline="")
    reader = csv.reader(file, delimiter=_delimiter(path, text), strict=True)
    begin = 1
    try:
        header = next(reader, None)
        if header is None:
            return
        names = _check_header(path, header)
        begin = reader.line_num + 1
        for cells in reader:
            where, begin = f"{path}:{begin}", reader.line_num + 1
            if any(cell.strip() for cell in cells):
                yield _row(names, cells, where)
    except csv.Error as error:
        raise UsageError(f"{path}:{begin}: {_explain(error)}") from error


def _delimiter(path: Path, text: str) -> str:
    """Returns the delimiter of a CSV file. This is the delimiter with which the header has the most
    names of a task's fields. If several delimiters give the same number, returns the most frequent
    of them. A `.tsv` file always has tabs."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = text.partition("\n")[0]
    known = {mark: len(_KNOWN & set(_cells(header, mark))) for mark in DELIMITERS}
    return max(DELIMITERS, key=lambda mark: (known[mark], header.count(mark)))


def _cells(header: str, mark: str) -> list[str]:
    return [cell.strip().strip('"') for cell in header.split(mark)]


def _check_header(path: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    for at, name in enumerate(names, 1):
        if not name:
            raise UsageError(f"{path}:1: column {at} has no name; the first line names the columns")
        if names.count(name) > 1:
            raise UsageError(f"{path}:1: column {name!r} is there {names.count(name)} times")
    return names


def _row(names: list[str], cells: list[str], where: str) -> Row:
    if len(cells) != len(names):
        raise UsageError(
            f"{where}: {len(cells)} cells, but the first line names {len(names)} columns; put "
            "quotes around a text that holds the delimiter or a line break"
        )
    values = dict(zip(names, cells, strict=True))
    filled: dict[str, object] = {name: cell for name, cell in values.items() if cell}
    return where, filled, tuple(name for name, cell in values.items() if not cell)


def _explain(error: csv.Error) -> str:
    if "field limit" in str(error):
        most = f"{csv.field_size_limit():,}"
        return f"a cell has more than {most} characters; write such rows as JSONL or Parquet"
    if "unexpected end" in str(error):
        return "a cell opens a quote that is never closed; write a quote in a text twice"
    return f"not CSV: {error}; write a quote in a text twice"
