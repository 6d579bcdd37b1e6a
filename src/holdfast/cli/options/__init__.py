"""The options of commands, and how they are read. Those of a run are in `holdfast.engine.options`.

- `parser`: argparse, with one line for a mistake.
- `run`: the commands that make, show and export runs.
- `train`: `holdfast train`.
- `gateway`: `holdfast gateway`.
- `results`: the commands that compare and report results.
"""
