"""Running many trajectories: isolation, retry, refill, concurrency, deadlines, scoring, progress.

Knows attempts, groups and budgets. Never knows what a rollout does or how tokens are sampled.

- `options`: the options of a run, each declared once.
- `settings`: how a run is worked on.
- `run`: `holdfast.run`, from Python.
- `run_plan`: the plan of a run, and the steps from it to the engine.
- `connect`: the policy and the renderer of its model, from an address or the embedded engine.
- `open_run`: a run that is new, resumed, or refused since it changed.
- `engine`: works through a run: admission, scoring, the end.
- `attempt`: one trajectory, attempt after attempt.
- `stop`, `progress`: whether the run is to end, and how far it is.
- `guards`: keeps user code from harming the run.
- `scoring`: scorers, and their durable results.
- `report`, `export`: what became of a run, for people and for files.
"""
