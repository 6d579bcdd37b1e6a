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

    OK = 0, "everything that could be done is done"
    FAILURES = 1, "trajectories failed for good, and --fail-on-permanent-failure was given"
    USAGE = 2, "the command cannot be carried out as given; nothing was changed"
    CHANGED = 3, "the run is recorded with other tasks, settings or code; nothing was changed"
    HELD = 4, "a live worker holds the run"
    STOPPED = 5, "stopped early (endpoint down, disk full, deadline); the same command goes on"
    CORRUPT = 6, "the journal has records that fail their checks, or has lost commits"
    NOTHING = 7, "nothing succeeded: every trajectory failed for good, or no step trained anything"
    SPENT = 8, "--max-cost or --max-tokens-total is reached; a higher one goes on"
    EMPTY = 9, "there was nothing to export: no file was written"
    INTERRUPTED = 130, "SIGINT; the same command goes on"
    TERMINATED = 143, "SIGTERM; the same command goes on"
