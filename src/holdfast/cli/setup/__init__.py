"""What a command needs before it can begin: code, connections, journals, errors.

- `errors`: from an error to one clear line and an exit code.
- `user_code`: the user's rollout and scorer, from a file.
- `connect`: the engine that a command names.
- `journals`: the journal, and the run, that a command names.
"""
