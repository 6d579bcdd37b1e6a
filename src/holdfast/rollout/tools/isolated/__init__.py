"""Tools that run in processes of their own.

- `pool`: Processes of isolated tools, kept warm: an import per call would cost more than the call.
- `process`: One process of an isolated tool, seen from the driver.
- `wire`: What a driver and the process of an isolated tool say to each other.
- `worker`: The process of an isolated tool: imports a module once, then runs one call after the
  other.
"""
