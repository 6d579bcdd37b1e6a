"""Worlds that are containers, over the API of Docker's engine. Podman serves the same API.

- `provider`: ContainerProvider: makes, finds and removes containers and their snapshots.
- `container`: Container: one running container, with its commands, files and snapshots.
- `creation`: makes the engine's description of a container from a WorldSpec.
- `images`: pulls and builds images, and squashes the layers of snapshots.
- `exec_stream`: follows one command: its input, its output, its end.
- `api`: ContainerApi, which sends requests to the engine and interprets its errors.
- `address`: where the engine listens.
"""
