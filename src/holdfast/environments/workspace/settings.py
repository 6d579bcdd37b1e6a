"""What a user asks of a workspace, checked when it is made."""

import os
import sys
from collections.abc import Mapping

from holdfast.environments.workspace.sandbox.command import Bounds
from holdfast.environments.workspace.sandbox.sandbox import Isolation
from holdfast.records.errors import UsageError


def isolation(wanted: str) -> Isolation:
    try:
        return Isolation(wanted)
    except ValueError:
        raise UsageError(f"sandbox={wanted!r}: there are {', '.join(Isolation)}") from None


def bounds(seconds: float, output: int) -> Bounds:
    if not 0 < seconds < float("inf") or output < 1:
        raise UsageError(f"command_timeout={seconds} and output_limit={output} must be above 0")
    return Bounds(seconds, output)


def variables(given: Mapping[str, str], interpreter: bool) -> dict[str, str]:
    """All that a command gets: nothing of ours, where keys and tokens are."""
    paths = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
    if interpreter:
        paths.insert(0, os.path.join(sys.prefix, "bin"))
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env: {name!r} cannot be the name of a variable, or its value is bad")
        if name in ("HOME", "TMPDIR"):
            raise UsageError(f"env: {name} is the workspace's own")
    return {
        "PATH": ":".join(paths),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Bytecode is checked by times, which snapshots do not keep; and the order of sets is
        # part of what is compared when a command is run again.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **given,
    }
