"""The command line. It handles words, files and exit codes, and decides nothing about rollouts.

- `main`: parses the words after `holdfast` and calls the command.
- `options`: The options of commands, and how they are read.
- `setup`: Prepares a command before it begins: code, connections, journals, errors.
- `commands`: One module for each command.
- `terminal`: Output to the terminal, and the signals that the terminal sends.
"""
