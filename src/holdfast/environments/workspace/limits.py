"""The limits of a workspace and of its commands."""

import resource

from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.worlds.contract.output import GIB, MIB, amount

ADDRESS_SPACE = 4
"""The limit of the address space, as a multiple of the memory limit. Reserved memory, which costs
nothing, counts there, and so does shared memory, which has to be limited."""


class WorkspaceLimit(Struct, frozen=True):
    """The largest allowed size of a workspace after a command, and therefore of every snapshot."""

    bytes: int = 512 * MIB
    files: int = 20_000
    """The most files, links and folders together."""

    def __post_init__(self) -> None:
        if self.bytes < 1 or self.files < 1:
            raise UsageError(f"a workspace needs room: {self}")

    def __str__(self) -> str:
        return f"{amount(self.bytes)} in {self.files:,} files"


class ResourceLimits(Struct, frozen=True):
    """Limits of one command. None means no limit.

    `processes` and `temporary` limit the whole command. Every other limit is for each process of
    the command separately. To limit the sum of all processes, run Holdfast in a container or a
    cgroup.
    """

    memory: int | None = 4 * GIB
    """The most bytes of private memory."""
    processes: int | None = 256
    """The most processes and threads together. Enforced only within bubblewrap."""
    file_size: int | None = 512 * MIB
    cpu_seconds: int | None = None
    open_files: int | None = 1024
    temporary: int = 256 * MIB
    """The most bytes in /tmp, which is empty when a command begins. Enforced only within
    bubblewrap."""
    niceness: int = 5

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and field != "niceness" and value < 1:
                raise UsageError(f"limits: {field}={value} leaves nothing to work with")
        if not 0 <= self.niceness <= 19:
            raise UsageError(f"limits: niceness={self.niceness} is not between 0 and 19")

    def as_arguments(self, *, count_processes: bool) -> list[str]:
        """Returns the arguments for the program prlimit(1), which sets the limits in the new
        process. A process with several threads cannot safely do this itself after a fork."""
        limits = [
            ("data", resource.RLIMIT_DATA, self.memory),
            ("as", resource.RLIMIT_AS, self.memory and self.memory * ADDRESS_SPACE),
            ("nproc", resource.RLIMIT_NPROC, self.processes if count_processes else None),
            ("fsize", resource.RLIMIT_FSIZE, self.file_size),
            ("cpu", resource.RLIMIT_CPU, self.cpu_seconds),
            ("nofile", resource.RLIMIT_NOFILE, self.open_files),
        ]
        texts = [_argument(name, kind, value) for name, kind, value in limits if value is not None]
        return ["--core=0", *texts]


def _argument(name: str, kind: int, value: int) -> str:
    # Only root may raise a hard limit, so a lower limit of this process is kept.
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return f"--{name}={value}:{value}"
