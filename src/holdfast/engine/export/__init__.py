"""Exports the data of a run.

- `export`: Exports a run's data row by row: samples, EvaluationRows, trajectories, failures.
- `read`: Reads samples and trajectories from Python, typed, one at a time.
- `rows`: Builds EvaluationRows, which hold a run's data in the shape that eval-protocol writes.
- `row_messages`: The messages of a row, with the rewards that environments reported for them.
- `row_status`: Describes how a trajectory ended, as the status of a row with its details.
- `row_tokens`: The token fields of a row, which a trainer reads from `execution_metadata.extra`.
- `prices`: Computes the cost of tokens from a table that the user provides.
- `nested`: Messages in one shape, for columns of tables.
- `atomic_file`: Writes a file so that it is either whole or absent.
"""
