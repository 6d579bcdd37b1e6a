"""Rows from files, lists and functions.

- `dataset`: Dataset: the source of an evaluation's rows.
- `loaders`: Data loaders make rows when a test runs, under eval-protocol's names.
"""
