"""Tools that run in separate processes.

- `pool`: keeps processes of isolated tools for later calls, because an import takes longer than
  most calls.
- `process`: starts, calls and ends one such process, in the driver.
- `wire`: the messages between the driver and such a process.
- `worker`: runs in such a process: imports a module once, then runs the calls one by one.
"""
