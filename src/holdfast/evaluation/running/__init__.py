"""Runs one evaluation, from its definition to its results.

- `call`: calls a decorated evaluation, with pytest or without it.
- `session`: the journal's path, the options and the embedded engines of one process.
- `experiment`: one variant of an evaluation, from its rows to its outcome.
- `signals`: SIGINT and SIGTERM while an evaluation runs.
- `connect`: connects to the policy that a setting is sampled from, and finds its address.
- `scorer`: wraps the user's function as the engine's scorer, and makes the rows that the function
  gets.
- `resume`: decides which recorded run an experiment continues.
- `judges`: checks the judges that the user's function names, before anything is sampled.
- `output_files`: writes the rows and the page of a finished run as files.
- `logged_rows`: stores each logged row as its own run, and reads all rows of a journal.
"""
