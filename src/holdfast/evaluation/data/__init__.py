"""Rows from files, lists and functions.

- `checks`: What is refused of a row, in the words of `holdfast run`.
- `columns`: Rows of a table, as they were before they were columns.
- `dataset`: Dataset: the source of an evaluation's rows.
"""
