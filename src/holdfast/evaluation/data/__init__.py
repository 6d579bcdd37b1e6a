"""Rows from files, lists and functions.

- `checks`: Refuses wrong rows, with the same messages as `holdfast run`.
- `dataset`: Dataset, the source of an evaluation's rows.
"""
