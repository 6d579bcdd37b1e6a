"""Rows from files, lists and functions.

- `files`: Reads the files of data sets: JSONL, JSON, Parquet, Arrow, and folders of them.
- `urls`: Data sets at a URL: downloaded whole when their rows are read, and not cached.
- `dataset`: Dataset: the source of an evaluation's rows.
- `loaders`: Data loaders make rows when a test runs, under eval-protocol's names.
"""
