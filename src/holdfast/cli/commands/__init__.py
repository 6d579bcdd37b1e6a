"""One module for each command.

- `run`: `holdfast run`: everything is checked before anything is done.
- `train`: `holdfast train`: everything is checked before anything is sampled or written.
- `gateway`: `holdfast gateway`: a run of agents that others start.
- `gateway_workers`: `holdfast gateway --workers N`: this process opens the run and reports on it, N
  others serve it.
- `serve`: `holdfast serve`: the embedded engine in the foreground.
- `show`: `holdfast runs` and `holdfast show`.
- `show_table`: the trajectories of a run, one line each.
- `export`: `holdfast export`: a run's data in a file that is either whole or not there.
- `export_parquet`: Parquet schemas for exports.
- `report`: `holdfast report`: a run as one HTML file.
- `compare`: `holdfast compare`: two runs, task by task.
- `journal`: `holdfast journal check` and `holdfast journal ledger`.
- `policy`: `holdfast policy check`: what an endpoint can do, and what is missing for training.
"""
