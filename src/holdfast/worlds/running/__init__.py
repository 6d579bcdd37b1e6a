"""Worlds of a run: who has which, and how they come back.

- `environment`: WorldEnvironment: a world as an environment of a trajectory.
- `comparison`: what may differ when a command runs again.
- `worlds`: Worlds: makes, finds and removes the worlds of one run in this process.
- `providers`: the providers by name, each opened once.
"""
