"""Points at which a test can end the process.

Production code calls `reach(name)` at moments whose order matters for durability. Outside tests, no
trap is armed, and a call costs one comparison. `holdfast.testing.crash_points` arms the trap.
"""

from collections.abc import Callable

_trap: Callable[[str], None] | None = None


def reach(point: str, times: int = 1) -> None:
    if _trap is not None:
        for _ in range(times):
            _trap(point)


def arm(trap: Callable[[str], None] | None) -> None:
    """Installs `trap` for the whole process. None removes the trap."""
    global _trap
    _trap = trap
