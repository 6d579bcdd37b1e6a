"""The options of commands, and how they are read.

- `run`: The words of the command line, with what they mean.
- `gateway`: The words of `holdfast gateway`, with what they mean.
- `results`: The words of the commands that look at the results of runs.
- `types`: Values on the command line: refused where they are read, with the option's name.
- `parser`: How the command line is read: mistakes are told in one line that helps.
"""
