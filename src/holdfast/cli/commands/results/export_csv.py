"""Writes exports as CSV, with one line per row. Lists and objects become JSON text, and null
becomes an empty cell.

Spreadsheets run text that looks like a formula. Replies, tools and engines can write such text, so
an apostrophe is put before it.
"""

import csv
import re
from pathlib import Path

import msgspec

from holdfast.engine.export.export import Row, What

FLAT = (What.SAMPLES, What.TRAJECTORIES, What.FAILURES)
"""The exports that can be CSV."""
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Matches text that gets an apostrophe before it: a formula, or a formula after apostrophes. So
removing one apostrophe from a matching cell always restores the text."""


class CsvFile:
    """A CSV file with the columns of its first row."""

    def __init__(self, path: Path):
        # The byte order mark makes spreadsheets read it as UTF-8.
        self._file = path.open("w", encoding="utf-8-sig", newline="")
        self._writer = csv.writer(self._file)
        self._columns: tuple[str, ...] | None = None

    def write(self, row: Row) -> None:
        if self._columns is None:
            self._columns = tuple(row)
            self._writer.writerow(self._columns)
        unknown = row.keys() - set(self._columns)
        assert not unknown, f"rows have the same columns, but {unknown}"
        self._writer.writerow([_cell(row.get(name)) for name in self._columns])

    def close(self) -> None:
        self._file.close()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return f"'{value}" if _FORMULA.match(value) else value
    if value is None:
        return value
    return msgspec.json.encode(value).decode()
