"""Tasks from anywhere: files, tables, data sets by name, functions, values of Python.

- `csv_files`: Reads CSV files, whose first line names the columns.
- `files`: Reads the files of data sets: JSONL, JSON, CSV, Parquet, Arrow, and folders of them.
- `urls`: Data sets at a URL: downloaded whole when their rows are read, and not cached.
- `hugging_face`: Data sets by their name on the Hugging Face hub.
- `sources`: What rows can come from, and how it is opened.
- `read`: Reads tasks from any source.
- `system`: A system message before the messages of every task.
"""
