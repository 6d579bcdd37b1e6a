"""Commands about the runs of a journal.

- `list_runs`: `holdfast runs`: what is in a journal.
- `worlds`: Lists the containers of runs, and removes those that nobody holds.
- `logs`: `holdfast logs`: what the processes of a run have written.
- `show`: `holdfast show`.
- `show_table`: the trajectories of a run, one line each.
- `show_steps`: the steps of a trajectory, conversation by conversation.
- `resume`: `holdfast resume`: repeats the last command that worked on a run.
- `fork`: `holdfast fork`: new samples that continue from a turn of a recorded trajectory.
- `names`: `holdfast rename` and `holdfast tag`: the name and the tags of a run.
- `delete`: `holdfast rm` and `holdfast prune`.
"""
