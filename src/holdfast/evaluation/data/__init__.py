"""Rows from files, lists and functions.

- `checks`: What is refused of a row, in the words of `holdfast run`.
- `dataset`: Dataset: the source of an evaluation's rows.
"""
