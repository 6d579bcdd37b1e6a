"""Worlds: a machine of its own for each trajectory (see docs/worlds.md).

- `contract`: the protocols, values and errors.
- `docker`: containers of Docker and Podman.
"""
