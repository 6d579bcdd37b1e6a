"""Tools that run in separate processes.

- `pool`: Processes of isolated tools, kept warm because an import per call would cost more than the
  call.
- `process`: One process of an isolated tool, as the driver sees it.
- `wire`: The messages between a driver and the process of an isolated tool.
- `worker`: The process of an isolated tool: imports a module once, then runs the calls one by one.
"""
