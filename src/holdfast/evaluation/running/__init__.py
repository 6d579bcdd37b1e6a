"""One evaluation from its definition to its results.

- `call`: calling a decorated evaluation, with pytest or without it.
- `session`: the journal's path, the options and the embedded engines of one process.
- `experiment`: one variant of an evaluation, from its rows to its outcome.
- `signals`: SIGINT and SIGTERM while an evaluation runs.
- `connect`: the policy that a setting is sampled from, and its address.
- `scorer`: the user's function as the engine's scorer, the rows that it gets, and those it returns.
- `resume`: which recorded run an experiment goes on with.
- `judges`: the judges that the user's function names, asked before anything is sampled.
- `output_files`: the rows and the page of a finished run, as files.
- `logged_rows`: a logged row as a run of its own; and all rows of a journal.
"""
