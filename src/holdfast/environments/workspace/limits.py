"""What a workspace and the commands in it may use."""

import resource

from msgspec import Struct

from holdfast.records.errors import UsageError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
ADDRESS_SPACE = 4
"""Address space per byte of memory: reserving is free, but mapping shared memory is not."""


class WorkspaceLimit(Struct, frozen=True):
    """How large a workspace may be between two commands. It bounds every snapshot, too."""

    bytes: int = 512 * MIB
    files: int = 20_000
    """Files, links and folders together."""

    def __post_init__(self) -> None:
        if self.bytes < 1 or self.files < 1:
            raise UsageError(f"a workspace needs room: {self}")

    def __str__(self) -> str:
        return f"{amount(self.bytes)} in {self.files:,} files"


class ResourceLimits(Struct, frozen=True):
    """Limits of one command; None leaves one unset. All but `processes` and `temporary` hold for
    each process by itself: the sum is for a container or a cgroup around the run to bound."""

    memory: int | None = 4 * GIB
    """Bytes of private memory."""
    processes: int | None = 256
    """Processes and threads of the command together. Held only within bubblewrap."""
    file_size: int | None = 512 * MIB
    cpu_seconds: int | None = None
    open_files: int | None = 1024
    temporary: int = 256 * MIB
    """Bytes in /tmp, which is empty when a command begins. Held only within bubblewrap."""
    niceness: int = 5

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and field != "niceness" and value < 1:
                raise UsageError(f"limits: {field}={value} leaves nothing to work with")
        if not 0 <= self.niceness <= 19:
            raise UsageError(f"limits: niceness={self.niceness} is not between 0 and 19")

    def as_arguments(self, *, count_processes: bool) -> list[str]:
        """For prlimit(1), which sets them between fork and exec; threads make it unsafe here."""
        found = ["--core=0"]
        if self.memory is not None:
            found.append(_argument("data", resource.RLIMIT_DATA, self.memory))
            found.append(_argument("as", resource.RLIMIT_AS, self.memory * ADDRESS_SPACE))
        if self.processes is not None and count_processes:
            found.append(_argument("nproc", resource.RLIMIT_NPROC, self.processes))
        if self.file_size is not None:
            found.append(_argument("fsize", resource.RLIMIT_FSIZE, self.file_size))
        if self.cpu_seconds is not None:
            found.append(_argument("cpu", resource.RLIMIT_CPU, self.cpu_seconds))
        if self.open_files is not None:
            found.append(_argument("nofile", resource.RLIMIT_NOFILE, self.open_files))
        return found


def _argument(name: str, which: int, wanted: int) -> str:
    # Only root may raise a hard limit: where ours is lower already, it stays.
    _, hard = resource.getrlimit(which)
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    return f"--{name}={value}:{value}"


def amount(size: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
