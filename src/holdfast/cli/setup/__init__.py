"""What a command needs before it can begin: code, connections, journals, errors.

- `errors`: From errors to one clear line and an exit code.
- `user_code`: Loading the user's rollout and scorer from a file.
- `connect`: Connecting: the policy that a command names, and the renderer of its model.
- `journals`: Opening the run that a command names.
"""
