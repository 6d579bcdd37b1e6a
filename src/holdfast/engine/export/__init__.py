"""Exports the data of a run.

- `export`: Exports a run's data row by row: samples, EvaluationRows, trajectories, failures.
- `read`: Reads samples and trajectories from Python, typed, one at a time.
- `rows`: EvaluationRow: a run's data in the shape that eval-protocol writes.
- `row_messages`: The messages of a row, with what environments reported about them.
- `row_status`: How a trajectory ended, in the words of a row: a status with its details.
- `row_tokens`: The token fields of a row: what `execution_metadata.extra` holds for a trainer.
- `prices`: What tokens cost, from a table that the user provides.
- `nested`: Messages in one shape, for columns of tables.
- `atomic_file`: Writes a file so that it is either whole or absent.
"""
