"""The options of commands, and how they are read. The options of a run are in
`holdfast.engine.options`.

- `suggestions`: suggests the word that the user probably meant.
- `parser`: parses the command line, and reports a mistake in one line.
- `dependent`: options that have a meaning only together with another one.
- `projects`: `holdfast init`.
- `run`: `holdfast run`, and the options that every run has.
- `runs`: the commands on recorded data, and the small commands.
- `train`: `holdfast train`.
- `view`: `holdfast view`.
- `gateway`: `holdfast gateway`.
"""
