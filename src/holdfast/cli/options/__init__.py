"""The options of commands, and how they are read. Those of a run are in `holdfast.engine.options`.

- `suggestions`: what a word was meant to be.
- `parser`: argparse, with one line for a mistake.
- `dependent`: options that mean something only beside another one.
- `projects`: `holdfast init`.
- `run`: `holdfast run`, and what every run has.
- `runs`: the commands on what is recorded, and the small ones.
- `train`: `holdfast train`.
- `gateway`: `holdfast gateway`.
"""
