"""What the driver, the actors and the processes of a cluster send each other: JSON by our codecs.

A process gets its job as the first line of its standard input, and orders after it; it reports by
lines to a pipe. Of a trajectory nothing is in any of them: a process finds its work, and how far
that is, in the journal.
"""

import msgspec
from msgspec import Struct

from holdfast.journal.journal import Worker


class Place(Struct, frozen=True):
    """Where an actor is."""

    host: str
    """The fully qualified name of its machine."""
    node: str
    """Ray's id of its node."""
    pid: int
    python: str
    ray: str
    holdfast: str
    address: str = ""
    """That of its node in the cluster."""
    reachable: str = ""
    """The name, or the address, by which other nodes reach a server on it."""


class ProcessJob(Struct, frozen=True):
    """What an actor starts on its node."""

    arguments: list[str]
    """Of this interpreter."""
    role: str
    run: str
    journal: str
    """The run's and the journal's names, for the log's; without any password."""
    variables: dict[str, str]
    message: str
    """The first line of its standard input."""


class ChildEnd(Struct, frozen=True):
    """How a process ended."""

    code: int
    log: str
    tail: str
    """Its last lines."""
    cpu: float = 0.0
    """Seconds of CPU that it took, with what it started and with its actor."""


class WorkerReport(Struct, frozen=True, omit_defaults=True):
    """One line of a process to its driver."""

    worker: Worker | None = None
    """It has joined the run as this worker, and claims nothing before it may."""
    refused: str = ""
    """Why it cannot work: the same would happen again."""
    fatal: str = ""
    """The kind of error that ended it, with `message`."""
    message: str = ""
    again: bool = False
    """Another process may do better."""
    port: int = 0
    """The port that it listens on."""
    url: str = ""


class Order(Struct, frozen=True, omit_defaults=True):
    """One line of a driver to a process."""

    go: bool = False
    stop: str = ""
    """Finish what is in flight, for this reason."""
    scorers: "list[ScorerAddress] | None" = None
    """The scorers that are available from now on."""


class ScorerAddress(Struct, frozen=True):
    host: str
    port: int
    token: str


def line(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"
