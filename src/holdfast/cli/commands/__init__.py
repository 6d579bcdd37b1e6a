"""One module for each command.

- `init`: `holdfast init`: a small project to begin with.
- `run`: `holdfast run`: everything is checked before anything is done.
- `dry_run`: `holdfast run --dry-run`: what the command would do.
- `train`: `holdfast train`: everything is checked before anything is sampled or written.
- `supervision`: the shared part of `--cluster` and `gateway --workers`: other processes do the
  work.
- `cluster`: `holdfast run --cluster`: workers that Ray starts.
- `pipeline`: `holdfast train --async`, its parts, and `holdfast train --watch`.
- `view`: `holdfast view`: the pages of a journal.
- `trace`: `holdfast trace`: spans for an OpenTelemetry collector.
- `serving`: commands that serve agents or engines, and the check of an engine.
- `runs`: the contents of a journal, run by run and trajectory by trajectory.
- `results`: a run's data and numbers: export, report, comparison.
- `journal`: `holdfast journal check`, `compact` and `ledger`.
- `config`: `holdfast config`: which file sets options here, and which options it sets.
- `completion`: `holdfast completion`: scripts for shells.
"""
