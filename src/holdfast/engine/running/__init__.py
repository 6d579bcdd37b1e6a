"""Runs the trajectories of a run, from the plan to each attempt.

- `run`: `holdfast.run`, from Python, and `holdfast.run_sync`.
- `result`: the return value of `holdfast.run`, with the run's end and its data.
- `run_plan`: the plan of a run, and the steps from it to the engine.
- `engine`: works through a run, from the admission of trajectories to their scores and the end.
- `reuse`: reuses trajectories that another run of the series has sampled.
- `forks`: where forks of a recorded trajectory begin, and with which records.
- `fork`: `holdfast.fork`, from Python.
- `series`: names runs that the user did not name.
- `attempt`: runs one trajectory, attempt after attempt.
"""
