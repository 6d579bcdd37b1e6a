"""Processors in a run: set up once, cleaned up once, and nothing recorded after the end."""

import asyncio

import pytest
from yard import Yard, turn

from holdfast.journal.memory import MemoryJournal
from holdfast.records.errors import (
    PolicyRefused,
    RunStopped,
)
from holdfast.rollout.processor import RolloutProcessor
from holdfast.testing.faulty import FaultyJournal


class Lifetime(RolloutProcessor):
    def __init__(self, *, fails: str = ""):
        self.calls: list[str] = []
        self.fails = fails

    async def setup(self):
        self.calls.append("setup")
        if self.fails == "setup":
            raise ConnectionError("no browser")

    async def rollout(self, t):
        self.calls.append("rollout")
        if self.fails == "run":
            raise PolicyRefused("403")
        return 1.0

    async def acleanup(self):
        self.calls.append("acleanup")


def test_a_processor_is_set_up_once_and_cleaned_up_once():
    processor = Lifetime()
    Yard(*"abc").run(processor)
    assert processor.calls == ["setup", *["rollout"] * 3, "acleanup"]


def test_a_processor_is_cleaned_up_when_the_run_fails():
    processor = Lifetime(fails="run")
    assert isinstance(Yard().run(processor).fatal, PolicyRefused)
    assert processor.calls == ["setup", "rollout", "acleanup"]


def test_a_processor_is_cleaned_up_when_its_set_up_fails():
    processor, yard = Lifetime(fails="setup"), Yard()
    with pytest.raises(ConnectionError):
        yard.run(processor)
    yard.assert_nothing_left()
    assert processor.calls == ["setup", "acleanup"]


def test_a_processor_that_starts_too_many_tasks_is_told_and_leaves_none():
    class Twice(Lifetime):
        def __call__(self, tasks, config):
            return [*super().__call__(tasks, config), *super().__call__(tasks, config)]

    yard = Yard()
    yard.run(Twice())
    (failure,) = yard.history().failures
    assert "2 asyncio tasks for 1 row" in failure.message


def test_a_rollout_cannot_record_anything_after_it_returned():
    late = []

    async def rollout(t):
        async def left_behind():
            await asyncio.sleep(0.02)
            try:
                await turn(t)
            except RunStopped as error:
                late.append(error)

        late.append(asyncio.create_task(left_behind()))
        return 1.0

    async def slow(view):
        await late[0]
        return 1.0

    yard = Yard()
    yard.run(rollout, slow)
    assert isinstance(late[1], RunStopped)
    assert not yard.history().steps


def test_a_step_that_became_durable_after_it_was_given_up_is_no_part_of_the_trajectory():
    class Slow(FaultyJournal):
        async def append(self, lease, records, **options):
            await super().append(lease, records, **options)
            await asyncio.sleep(0.05)

    async def rollout(t):
        try:
            async with asyncio.timeout(0.02):
                await turn(t)
        except TimeoutError:
            return 1.0

    seen = []
    yard = Yard(journal=Slow(MemoryJournal()))
    yard.run(rollout, lambda view: seen.append(len(view.turns)) or 1.0)
    assert seen == [len(yard.history().generations)] == [0]
