"""Orphans: asyncio tasks that user code started and left behind, and whose they are.

Whatever a trajectory's task starts, and what that starts, inherits its context; so each is known by
the trajectory that it came from, long after that is over.
"""

import asyncio
import gc
from collections.abc import Iterable
from contextvars import Context

from holdfast.rollout.replay.current_code import code_in

SECONDS = 5.0


async def ended(tasks: "Iterable[asyncio.Task[object]]") -> list[str]:
    """Cancels them and waits a while for their end; what each is called, and whose it is."""
    left = list(tasks)
    told = sorted(_told(task) for task in left)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=SECONDS)
    return told


def _told(task: "asyncio.Task[object]") -> str:
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", "") or task.get_name()
    owner = code_in(_context(task)).trajectory
    return f"{name} of {owner}" if owner else str(name)


def _context(task: "asyncio.Task[object]") -> Context:
    if hasattr(task, "get_context"):
        found: Context = task.get_context()
        return found
    # Python 3.11 tells it to nobody but the garbage collector: the task's own comes first.
    contexts = (one for one in gc.get_referents(task) if isinstance(one, Context))
    return next(contexts, Context())
