"""Runs many trajectories, with isolation, retries, refills, concurrency, deadlines, scoring and
progress.

The engine knows attempts, groups and budgets. It does not know what a rollout does, or how tokens
are sampled.

- `running`: from the plan of a run to each attempt at a trajectory; `holdfast.run`.
- `judging`: a judge, which is a model that scores by a rubric.
- `scoring`: scorers, and their durable results.
- `guards`: keeps user code from harming the run.
- `option_kinds`: reads the text of an option as a number, a list, JSON or a table.
- `options`: the options of a run, each declared once.
- `settings`: settings of the work on a run, which do not change what the run samples.
- `stop`: the request to end a run, with its reason.
- `arguments`: turns the arguments of `holdfast.run` (dicts, addresses, paths) into values.
- `connect`: connects to a policy, from an address or the embedded engine.
- `meant`: the model that a call means, before it is connected to an engine.
- `open_policy`: opens a policy, or the embedded engine, for the duration of a block.
- `open_run`: creates or resumes a run, or refuses a run that has changed.
- `report`: the end-of-run report, for people.
- `progress`: counts what a run has done, and shows it.
- `export`: the data of a run, for programs, and the cost of its tokens.
"""
