"""What is read out of a finished run.

- `export`: A run's data, row by row: samples, EvaluationRows, trajectories, failures.
- `read`: Reading a run from Python: what it gave, typed, one at a time.
- `rows`: EvaluationRow: a run's data in the shape that eval-protocol writes.
- `row_messages`: The messages of a row, with what environments said about them.
- `row_status`: How a trajectory ended, in the words of a row: a status with its details.
- `row_tokens`: The token fields of a row: what `execution_metadata.extra` holds for a trainer.
- `prices`: What tokens cost, by a table of the user's.
- `nested`: Messages in one shape, whatever they hold: for columns of tables.
- `atomic_file`: A file that is either whole or not there.
"""
