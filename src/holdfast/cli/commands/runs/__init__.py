"""Commands about the runs of a journal.

- `list_runs`: `holdfast runs`: what is in a journal.
- `worlds`: Lists the containers of runs, and removes those that nobody holds.
- `logs`: `holdfast logs`: what the processes of a run have written.
- `show`: `holdfast show`.
- `show_table`: the trajectories of a run, one line each.
- `show_steps`: the steps of a trajectory, conversation by conversation.
- `resume`: `holdfast resume`: the command that a run was last worked on with, again.
- `fork`: `holdfast fork`: samples on from a turn of a trajectory.
- `names`: `holdfast rename` and `holdfast tag`: what a run is called.
- `delete`: `holdfast rm` and `holdfast prune`.
"""
