"""The border to processors that override `__call__`, which takes a list of rows, as eval-protocol's
do: one trajectory is a list of one row. Everywhere else, a processor is its `rollout(t)`.
"""

import asyncio

from holdfast.records.errors import UsageError
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import (
    Returned,
    RolloutConfig,
    RolloutProcessor,
    completion_params_of,
    run_rollout,
)
from holdfast.rollout.replay.session import Session
from holdfast.rollout.threads.contain import end_task


async def start_rollout(processor: RolloutProcessor, session: Session) -> "asyncio.Task[Returned]":
    """One attempt's rollout as a task of its own, which the caller owns."""
    if type(processor).__call__ is RolloutProcessor.__call__:
        rollout = run_rollout(processor, Rollout(session))
        return asyncio.create_task(rollout, name=f"rollout {session.task.id}")
    tasks: object = processor([session.task], _config(session))
    if isinstance(tasks, list) and len(tasks) == 1 and isinstance(tasks[0], asyncio.Task):
        return tasks[0]
    raise await _wrong_result(processor, tasks)


def _config(session: Session) -> RolloutConfig:
    spec = session.context.spec
    params = completion_params_of(spec.model, spec.sampling, n=spec.samples)
    return RolloutConfig(spec.model, spec.sampling, lambda row: Rollout(session), params)


async def _wrong_result(processor: RolloutProcessor, result: object) -> UsageError:
    """The error of a processor that returned something else; what it returned is ended."""
    items = list(result) if isinstance(result, list | tuple) else [result]
    for item in items:
        if isinstance(item, asyncio.Task):
            await end_task(item)
        elif asyncio.iscoroutine(item):
            item.close()
    kinds = ", ".join(type(item).__name__ for item in items[:5])
    found = f"{len(items)} of {kinds}" if isinstance(result, list | tuple) else kinds
    return UsageError(
        f"{type(processor).__name__} returned {found} for 1 row; it wants a list of asyncio tasks, "
        "of which task i belongs to row i"
    )
