"""The options of commands, and how they are read. Those of a run are in `holdfast.engine.options`.

- `suggestions`: what a word was meant to be.
- `parser`: argparse, with one line for a mistake.
- `dependent`: options that mean something only beside another one.
- `run`: the commands that make, show and export runs.
- `runs`: the commands that go on with runs, name them, and delete them.
- `train`: `holdfast train`.
- `gateway`: `holdfast gateway`.
- `results`: the commands that compare and report results.
"""
