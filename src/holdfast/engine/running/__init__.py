"""Running the trajectories of a run, from the plan to each attempt.

- `run`: `holdfast.run`, from Python, and `holdfast.run_sync`.
- `result`: what it returns: how the run ended, and all that it gave.
- `run_plan`: the plan of a run, and the steps from it to the engine.
- `engine`: works through a run: admission, scoring, the end.
- `reuse`: trajectories that another run of the series has sampled already.
- `series`: runs that nobody named.
- `attempt`: one trajectory, attempt after attempt.
"""
