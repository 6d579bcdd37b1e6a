"""Commands that take a run's data and numbers out of a journal.

- `output_file`: decides whether the file that `--out` names may be replaced.
- `export`: `holdfast export`, which writes a run's data to a file that is either whole or not
  there.
- `export_csv`: writes exports as CSV.
- `export_parquet`: writes exports as Parquet, and defines their schemas.
- `export_traces`: chooses where ATIF documents and logs of Inspect are written.
- `report`: `holdfast report`, which shows the numbers of a run, or writes them as one HTML file.
- `compare`: `holdfast compare`, which compares two runs task by task.
"""
