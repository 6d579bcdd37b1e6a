"""Rows from files, lists and functions.

- `checks`: Which rows are refused, with the same messages as `holdfast run`.
- `dataset`: Dataset: the source of an evaluation's rows.
"""
