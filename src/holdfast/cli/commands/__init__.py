"""One module for each command.

- `init`: `holdfast init`, which writes a small project to begin with.
- `run`: `holdfast run`, which checks everything before it does anything.
- `dry_run`: `holdfast run --dry-run`, which shows what the command would do.
- `train`: `holdfast train`, which checks everything before it samples or writes anything.
- `supervision`: the shared code of `--cluster` and `gateway --workers`, which leave the work to
  other processes.
- `cluster`: `holdfast run --cluster`, whose workers Ray starts.
- `pipeline`: `holdfast train --async`, its parts, and `holdfast train --watch`.
- `view`: `holdfast view`, which serves the pages of a journal.
- `trace`: `holdfast trace`, which sends spans to an OpenTelemetry collector.
- `serving`: commands that serve agents or engines, and the check of an engine.
- `runs`: commands about the runs and the trajectories of a journal.
- `results`: commands that take a run's data and numbers out: export, report, comparison.
- `journal`: `holdfast journal check`, `compact` and `ledger`.
- `config`: `holdfast config`, which shows the file that sets options here, and its options.
- `completion`: `holdfast completion`, which prints completion scripts for shells.
"""
