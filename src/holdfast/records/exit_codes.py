"""Exit codes of commands. Their meaning never changes, because scripts depend on it."""

from enum import IntEnum
from typing import Self


class Exit(IntEnum):
    """The exit code of a command. `meaning` is its text in `--help`."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "the command did everything that it could"
    FAILURES = 1, "trajectories failed permanently, and --fail-on-permanent-failure was given"
    USAGE = 2, "the command is wrong or cannot be carried out; it changed nothing"
    CHANGED = 3, "the run has other tasks, settings or code; the command changed nothing"
    HELD = 4, "a live worker holds the run"
    STOPPED = (
        5,
        "stopped early (endpoint down, disk full, deadline); repeat the command to continue",
    )
    CORRUPT = 6, "the journal is damaged or has lost commits"
    NOTHING = 7, "every trajectory failed permanently, or no step trained anything"
    SPENT = 8, "--max-cost or --max-tokens-total is reached; raise it to continue"
    EMPTY = 9, "there was nothing to export; no file was written"
    INTERRUPTED = 130, "SIGINT; repeat the command to continue"
    TERMINATED = 143, "SIGTERM; repeat the command to continue"
