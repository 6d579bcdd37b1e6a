"""Agents in containers that a command names (`--agent`), and Harbor's verifier.

- `environment`: HarborEnvironment: the container of a Harbor task, with its solution and its tests.
- `agents`: `oracle`, `terminal`, and any command.
"""
