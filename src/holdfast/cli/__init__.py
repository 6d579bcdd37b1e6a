"""The command line. Knows words, files and exit codes; decides nothing about rollouts.

- `main`: `holdfast …`: parses the words and hands over.
- `options`: The options of commands, and how they are read.
- `setup`: What a command needs before it can begin: code, connections, journals, errors.
- `commands`: One module for each command.
- `terminal`: What a terminal is shown, and the signals that it sends.
"""
