"""Worlds of a run: who has which, and how they come back.

- `environment`: WorldEnvironment: a world as an environment of a trajectory.
- `comparison`: what may differ when a command runs again.
- `cadence`: when a world's files are worth a snapshot.
- `worlds`: Worlds: the worlds of one run, always behind the ledger.
- `removal`: removes worlds, and compares providers with the ledger.
- `providers`: the providers by name, each opened once.
"""
