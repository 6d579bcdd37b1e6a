"""The agents that a command names (`--agent`), which work in containers, and Harbor's verifier.

- `environment`: HarborEnvironment: the container of a Harbor task, with its solution and its tests.
- `agents`: `oracle`, `terminal`, and any command.
"""
