"""One evaluation from its definition to its results.

- `call`: calling a decorated evaluation, with pytest or without it.
- `session`: the journal's path, the options and the embedded engines of one process.
- `experiment`: one variant of an evaluation, from its rows to its outcome.
- `signals`: SIGINT and SIGTERM while an evaluation runs.
- `connect`, `providers`: the policy that a setting is sampled from, and hosted engines by the first
  word of a model's name, as in `openai/gpt-4o`.
- `resume`: which recorded run an experiment goes on with.
- `judges`: the judges that the user's function names, asked before anything is sampled.
- `scorer`, `scorer_row`: the user's function as the engine's scorer, and the row that it gets.
- `returned_rows`: which of the given rows each returned row is.
- `output_files`: the rows and the page of a finished run, as files.
- `logged_rows`: a logged row as a run of its own; and all rows of a journal.
"""
