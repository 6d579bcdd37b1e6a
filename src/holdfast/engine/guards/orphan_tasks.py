"""Finds orphans, which are asyncio tasks that user code started and left behind.

A task inherits the context of the task that started it. So the trajectory of an orphan is known
even after the trajectory is over.
"""

import asyncio
import gc
from collections.abc import Iterable
from contextvars import Context

from holdfast.policy.client.circuit_breaker import PROBE_TASK_PREFIX
from holdfast.rollout.replay.current_code import code_in

WAIT_SECONDS = 5.0


def left_behind(before: "set[asyncio.Task[object]]") -> "list[asyncio.Task[object]]":
    """Returns the running tasks that are not in `before`. Leaves out the probes of engines, because
    they end with their engines."""
    return [
        task
        for task in asyncio.all_tasks() - before
        if not task.get_name().startswith(PROBE_TASK_PREFIX)
    ]


async def end_tasks(tasks: "Iterable[asyncio.Task[object]]") -> list[str]:
    """Cancels the tasks, and waits up to `WAIT_SECONDS` for their end. Returns their names and
    trajectories.
    """
    left = list(tasks)
    names = sorted(_describe(task) for task in left)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=WAIT_SECONDS)
    return names


def _describe(task: "asyncio.Task[object]") -> str:
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", "") or task.get_name()
    owner = code_in(_context(task)).trajectory
    return f"{name} of {owner}" if owner else str(name)


def _context(task: "asyncio.Task[object]") -> Context:
    if hasattr(task, "get_context"):
        context: Context = task.get_context()
        return context
    # Python 3.11 exposes the context only to the garbage collector. The task's own comes first.
    contexts = (referent for referent in gc.get_referents(task) if isinstance(referent, Context))
    return next(contexts, Context())
