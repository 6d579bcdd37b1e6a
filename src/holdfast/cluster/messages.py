"""Messages between the driver, the actors and the processes of a cluster, as JSON by Holdfast's
codecs.

A process gets its job as the first line of its standard input, and orders in later lines. It writes
its reports as lines to a pipe. No message has any part of a trajectory: a process finds its work,
and its progress, in the journal.
"""

import msgspec
from msgspec import Struct

from holdfast.journal.types import Worker


class Place(Struct, frozen=True):
    """The place where an actor runs."""

    host: str
    """The fully qualified name of the machine."""
    node: str
    """Ray's id of the node."""
    pid: int
    python: str
    ray: str
    holdfast: str
    address: str = ""
    """The node's address in the cluster."""
    reachable: str = ""
    """The name or address by which other nodes reach a server on the node."""


class ProcessJob(Struct, frozen=True):
    """A description of the process that an actor starts on its node."""

    arguments: list[str]
    """The arguments of the Python interpreter."""
    role: str
    run: str
    journal: str
    """The journal's name, without a password. The folder of the log is named after the run and the
    journal."""
    variables: dict[str, str]
    message: str
    """The first line of the process's standard input."""


class ChildEnd(Struct, frozen=True):
    """How a process ended."""

    code: int
    log: str
    tail: str
    """The last lines of its log."""
    cpu: float = 0.0
    """Seconds of CPU that the process, its child processes and its actor took."""


class WorkerReport(Struct, frozen=True, omit_defaults=True):
    """One line from a process to its driver."""

    worker: Worker | None = None
    """The worker that the process became when it joined the run. The worker claims nothing until
    the process gets the order to go."""
    refused: str = ""
    """The reason why the process cannot work. Another try would fail the same way."""
    fatal: str = ""
    """The kind of the error that ended the process; its text is in `message`."""
    message: str = ""
    again: bool = False
    """Whether another process may succeed where this process failed."""
    port: int = 0
    """The port on which the process listens."""
    url: str = ""


class Order(Struct, frozen=True, omit_defaults=True):
    """One line from a driver to a process."""

    go: bool = False
    stop: str = ""
    """The reason why the process has to stop. It finishes its work in flight first."""
    scorers: "list[ScorerAddress] | None" = None
    """The scorers that are available from now on."""


class ScorerAddress(Struct, frozen=True):
    host: str
    port: int
    token: str


def line(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"
