"""Running many trajectories: isolation, retry, refill, concurrency, deadlines, scoring, progress.

Knows attempts, groups and budgets. Never knows what a rollout does or how tokens are sampled.

- `options`: the options of a run, each declared once.
- `prices`: what tokens cost, by a table of the user's.
- `settings`: how a run is worked on.
- `run`: `holdfast.run`, from Python, and `holdfast.run_sync`.
- `arguments`: its arguments as people write them: dicts, addresses and paths.
- `result`: what it returns: how the run ended, and all that it gave.
- `run_plan`: the plan of a run, and the steps from it to the engine.
- `connect`: the policy and the renderer of its model, from an address or the embedded engine.
- `open_policy`: a policy by its address, or the embedded engine, for as long as a block lasts.
- `open_run`: a run that is new, resumed, or refused since it changed.
- `engine`: works through a run: admission, scoring, the end.
- `attempt`: one trajectory, attempt after attempt.
- `stop`, `progress`: whether the run is to end, and how far it is.
- `guards`: keeps user code from harming the run.
- `scoring`: scorers, and their durable results.
- `judging`: a judge: a model that scores by a rubric.
- `report`, `export`: what became of a run, for people and for files.
"""
