"""Whose code runs: one value, inherited by tasks, changed for one task alone."""

import asyncio
import contextvars

from holdfast.records.trajectory import TrajectoryKey
from holdfast.rollout.replay.current_code import (
    CURRENT,
    CurrentCode,
    change_current,
    code_in,
    enter_trajectory,
)


def test_a_field_changes_alone_and_only_for_the_task_and_its_children():
    async def child():
        change_current(step="inner")
        return CURRENT.get()

    async def main():
        enter_trajectory(TrajectoryKey("run", "task", 0))
        inner = await asyncio.create_task(child())
        return inner, CURRENT.get()

    inner, outer = asyncio.run(main())
    assert (inner.trajectory, inner.step) == ("run/task/0", "inner")
    assert outer == CurrentCode(trajectory="run/task/0")
    assert CURRENT.get() == CurrentCode()


def test_the_value_of_another_context_can_be_read():
    context = contextvars.copy_context()
    context.run(change_current, trajectory="run/task/1")
    assert code_in(context).trajectory == "run/task/1"
    assert code_in(contextvars.Context()) == CurrentCode()
