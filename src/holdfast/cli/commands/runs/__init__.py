"""Commands about the runs of a journal.

- `list_runs`: `holdfast runs`, which lists the runs of a journal.
- `worlds`: Lists the containers of runs, and removes those that nobody holds.
- `logs`: `holdfast logs`, which lists the log files of a run's processes.
- `show`: `holdfast show`.
- `show_table`: the trajectories of a run, one line each.
- `show_steps`: the steps of a trajectory, conversation by conversation.
- `resume`: `holdfast resume`, which repeats the last command that worked on a run.
- `fork`: `holdfast fork`, which makes new samples that continue from a turn of a recorded
  trajectory.
- `names`: `holdfast rename` and `holdfast tag`, which change the name and the tags of a run.
- `delete`: `holdfast rm` and `holdfast prune`.
"""
