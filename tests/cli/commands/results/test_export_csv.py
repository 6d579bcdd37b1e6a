"""A CSV file runs nothing in a spreadsheet, and loses nothing by that."""

import csv
from pathlib import Path

import pytest

from holdfast.cli.commands.results.export_csv import CsvFile


def cells(path: Path, *values: object) -> list[str]:
    """The cells that are written for the values."""
    file = CsvFile(path)
    file.write({f"c{number}": value for number, value in enumerate(values)})
    file.close()
    with path.open(encoding="utf-8-sig", newline="") as written:
        return list(csv.reader(written))[1]


@pytest.mark.parametrize("mark", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_looks_like_a_formula_has_an_apostrophe_before_it(
    tmp_path: Path, mark: str
) -> None:
    text = f'{mark}HYPERLINK("http://x.test")'
    assert cells(tmp_path / "x.csv", text) == [f"'{text}"]


def test_the_guard_can_be_undone(tmp_path: Path) -> None:
    assert cells(tmp_path / "x.csv", "'=1", "'quoted'") == ["''=1", "'quoted'"]


def test_numbers_and_other_texts_stay_as_they_are(tmp_path: Path) -> None:
    texts = cells(tmp_path / "x.csv", -1.5, "a=b", "", None, [-1], {"a": "=1"})
    assert texts == ["-1.5", "a=b", "", "", "[-1]", '{"a":"=1"}']
