"""Processes that run only a user's code: isolated tools, and scorers.

- `frames`: the messages between such a process and its parent. Each is a length, then msgpack.
- `user_process`: starts such a process from its parent, and ends it with its process group.
- `user_module`: runs in such a process: ends it with its parent, and imports the user's module.
"""
