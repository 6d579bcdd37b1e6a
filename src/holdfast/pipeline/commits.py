"""The commits of other processes wake whoever waits here.

A journal wakes its own process at once, and looks every second for what others did. Two processes
that hand work to each other would wait for most of that second each time. SQLite's log is a file
that every commit writes to: looking at it costs microseconds.
"""

import asyncio
import os

from holdfast.journal.changes import Changes

LOOK_SECONDS = 0.01
SAME_TICK = 0.05
"""Two writes may bear the same time, and leave the file as long as it was."""


async def notice_commits(address: str, changes: Changes, *, every: float = LOOK_SECONDS) -> None:
    """For ever: notifies `changes` after each commit to the SQLite journal at `address`. For other
    journals it does nothing: they have ways of their own."""
    if "://" in address:
        return
    path, seen, until = f"{address}-wal", None, 0.0
    clock = asyncio.get_running_loop().time
    while True:
        mark = _mark(path)
        if mark != seen:
            seen, until = mark, clock() + SAME_TICK
            changes.notify()
        elif until and clock() >= until:
            until = 0.0
            changes.notify()
        await asyncio.sleep(every)


def _mark(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
