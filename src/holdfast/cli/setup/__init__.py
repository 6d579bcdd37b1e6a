"""Prepares a command before it begins: code, connections, journals, errors.

- `config_file`: options that are always the same, written down once.
- `recorded_command`: the command of a run, so that it can be given again.
- `errors`: from an error to one clear line and an exit code.
- `user_code`: the user's rollout and scorer, from a file.
- `scorers`: the scorer, in this process or in separate processes.
- `connect`: the engine that a command names.
- `journals`: the journal that a command names.
- `command_run`: the run that a command names.
- `gateway_options`: the options of a gateway.
"""
