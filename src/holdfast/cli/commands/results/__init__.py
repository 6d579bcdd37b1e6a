"""Commands that take a run's data and numbers out of a journal.

- `output_file`: decides whether the file that `--out` names may be replaced.
- `export`: `holdfast export`: a run's data in a file that is either whole or not there.
- `export_csv`: Exports as CSV.
- `export_parquet`: Exports as Parquet, and their schemas.
- `export_traces`: Where ATIF documents and logs of Inspect go.
- `report`: `holdfast report`: a run in numbers, or as one HTML file.
- `compare`: `holdfast compare`: two runs, task by task.
"""
