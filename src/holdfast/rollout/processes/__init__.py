"""Processes that run a user's code and nothing else: isolated tools, and scorers.

- `frames`: What is sent between such a process and whoever started it: length, then msgpack.
- `user_process`: Such a process, as whoever started it sees it: started, and ended with its group.
- `user_module`: In such a process: it ends with its parent, and imports the module of the user's.
"""
