"""Prepares a command before it begins: code, connections, journals, errors.

- `config_file`: reads the user's options from the configuration file.
- `recorded_command`: records the command of a run, so that it can be repeated.
- `errors`: turns an error into one clear line and an exit code.
- `user_code`: finds the user's rollout and scorer in their file.
- `scorers`: makes the scorer, in this process or in separate processes.
- `connect`: connects to the engine that a command names.
- `journals`: opens the journal that a command names.
- `command_run`: finds or opens the run that a command names.
- `gateway_options`: reads the options of a gateway.
"""
