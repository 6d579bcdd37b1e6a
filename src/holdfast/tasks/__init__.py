"""Reads tasks from anywhere: files, tables, data sets by name, functions, Python values.

- `csv_files`: Reads CSV files, whose first line names the columns.
- `files`: Reads the files of data sets: JSONL, JSON, CSV, Parquet, Arrow, and folders of them.
- `urls`: Downloads data sets from a URL when their rows are read, and does not cache them.
- `harbor`: Reads Harbor tasks: folders with an instruction, an image and tests.
- `hugging_face`: Reads data sets by their name on the Hugging Face hub.
- `sources`: The sources that rows can come from, and how each is opened.
- `columns`: Says which column of a data set is which field of a task.
- `read`: Reads tasks from any source.
- `system`: Puts a system message before the messages of every task.
"""
