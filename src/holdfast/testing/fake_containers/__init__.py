"""A stand-in for a container engine, which serves the engine's API on a Unix socket, with faults on
demand.

Containers are folders, and their commands are real processes within bubblewrap. There are no
limits of memory or processes, and no network.

- `engine`: FakeContainers, which starts and ends the engine, and makes its answers fail.
- `routes`: what each request does.
- `state`: images, containers and commands.
- `http`: requests and answers on a raw connection.
"""

from holdfast.testing.fake_containers.engine import FakeContainers

__all__ = ["FakeContainers"]
