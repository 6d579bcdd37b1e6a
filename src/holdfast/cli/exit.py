"""Exit codes. Scripts depend on them: they never change their meaning."""

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    """Everything that could be done is done."""
    FAILURES = 1
    """Some trajectories failed for good, and --fail-on-permanent-failure was given."""
    USAGE = 2
    """The command cannot be carried out as given; nothing was changed."""
    CHANGED = 3
    """The run is recorded with other tasks, settings or code."""
    HELD = 4
    """A live worker holds the run."""
    STOPPED = 5
    """The run stopped early (endpoint down, disk full, deadline); the same command goes on."""
    CORRUPT = 6
    """The journal has records that fail their checks."""
    INTERRUPTED = 130
    """SIGINT: the same command goes on."""
    TERMINATED = 143
    """SIGTERM: the same command goes on."""
