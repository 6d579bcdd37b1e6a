"""Colours for statuses. They are used only on a terminal, and never if NO_COLOR is set."""

import os
import sys

from holdfast.records.trajectory import Status

_RESET = "\x1b[0m"
_CODES = {
    Status.COMPLETED.name: "\x1b[32m",
    Status.TRUNCATED.name: "\x1b[33m",
    Status.FAILED.name: "\x1b[31m",
    Status.RUNNING.name: "\x1b[36m",
    Status.PENDING.name: "\x1b[2m",
    Status.ABORTED.name: "\x1b[35m",
}


def is_coloured() -> bool:
    """Returns whether standard output should have colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty()


def paint(text: str, status: str) -> str:
    """Returns the text in the colour of a status, or unchanged if there are no colours."""
    code = _CODES.get(status, "")
    return f"{code}{text}{_RESET}" if code and is_coloured() else text
