"""Manages the worlds of a run: gives each trajectory its world, and restores worlds.

- `environment`: WorldEnvironment: a world as an environment of a trajectory.
- `comparison`: removes from an output what may differ when a command runs again.
- `cadence`: decides when to take a snapshot of a world's files.
- `worlds`: Worlds, which manages the worlds of one run. A world is in the ledger before it exists.
- `removal`: removes worlds, and compares providers with the ledger.
- `providers`: the providers by name, each opened once.
"""
