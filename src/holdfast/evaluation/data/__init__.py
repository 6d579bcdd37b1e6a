"""Rows from files, lists and functions.

- `dataset`: Dataset: where the rows of an evaluation come from.
- `files`: Files of data sets, read record by record: JSONL, JSON, Parquet, Arrow, and folders of
  them.
- `loaders`: Data loaders: rows that are made when a test runs, under eval-protocol's names.
- `urls`: Data sets behind an address: fetched whole when their rows are wanted, and kept nowhere.
"""
