"""The worlds of a run: which trajectory has which world, and how worlds are restored.

- `environment`: WorldEnvironment: a world as an environment of a trajectory.
- `comparison`: removes from an output what may differ when a command runs again.
- `cadence`: decides when to take a snapshot of a world's files.
- `worlds`: Worlds: the worlds of one run, each in the ledger before it exists.
- `removal`: removes worlds, and compares providers with the ledger.
- `providers`: the providers by name, each opened once.
"""
