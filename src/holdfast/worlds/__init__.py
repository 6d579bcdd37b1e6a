"""Worlds: a separate machine for each trajectory (see docs/worlds.md).

- `contract`: the protocols, values and errors.
- `docker`: containers of Docker and Podman.
- `forwarding`: a port in a world that leads to a Unix socket of this machine.
- `tools`: the tools with which a model acts in its world.
- `running`: the worlds of a run: an environment over them, and their ledger.
"""
