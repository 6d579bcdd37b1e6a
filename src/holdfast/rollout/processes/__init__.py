"""Processes that run only a user's code: isolated tools, and scorers.

- `frames`: The frames between such a process and its parent: length, then msgpack.
- `user_process`: The parent's view of such a process: starts it, and ends it with its group.
- `user_module`: Inside such a process: ends it with its parent, and imports the user's module.
"""
