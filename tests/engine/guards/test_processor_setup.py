"""A processor's own setup and clean-up: whatever they do, the run has its result, and ends."""

import asyncio
import sys

import pytest

import holdfast
from holdfast.engine.guards import processor_setup
from support.engine.local_run import LocalRun, turn


class Keeper(holdfast.RolloutProcessor):
    def __init__(self, *, setup=None, cleanup=None):
        self.tasks = []
        self._doing = {"setup": setup, "cleanup": cleanup}

    async def _do(self, what):
        self.tasks.append((what, asyncio.current_task()))
        if self._doing[what] is not None:
            await self._doing[what]()

    async def setup(self):
        await self._do("setup")

    async def rollout(self, t):
        await turn(t)

    async def acleanup(self):
        await self._do("cleanup")


async def exits():
    sys.exit(0)


async def awaits_what_it_cancelled():
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def hangs():
    await asyncio.sleep(600)


@pytest.mark.parametrize("what", [exits, awaits_what_it_cancelled])
def test_a_setup_that_exits_is_an_error_and_no_silent_end(what):
    local = LocalRun(*"ab")
    with pytest.raises(
        processor_setup.ProcessorBroken, match="setup of the processor: user code raised"
    ):
        local.run(Keeper(setup=what))
    assert set(local.statuses().values()) == {("PENDING", False)}


@pytest.mark.parametrize("what", [exits, awaits_what_it_cancelled, hangs])
def test_a_clean_up_that_exits_or_never_ends_takes_nothing_from_the_result(what, monkeypatch):
    monkeypatch.setattr(processor_setup, "CLEAN_UP_SECONDS", 0.1)
    local = LocalRun(*"ab")
    ending = local.run(Keeper(cleanup=what))
    assert isinstance(ending.fatal, processor_setup.ProcessorBroken)
    text = "did not end within" if what is hangs else "user code raised"
    assert text in str(ending.fatal)
    assert set(local.statuses().values()) == {("COMPLETED", True)}


def test_a_stop_ends_a_setup_that_does_not_end_and_cleans_up():
    local = LocalRun(*"ab")

    async def stopped_meanwhile():
        local.stop.request("enough")
        await asyncio.sleep(600)

    keeper = Keeper(setup=stopped_meanwhile)
    ending = local.run(keeper)
    assert (ending.stopped, ending.fatal) == ("enough", None)
    assert [what for what, _ in keeper.tasks] == ["setup", "cleanup"]
    assert set(local.statuses().values()) == {("PENDING", False)}


def test_the_run_s_deadline_ends_a_setup_that_does_not_end():
    ending = LocalRun().run(Keeper(setup=hangs), run_deadline=0.1)
    assert "deadline" in ending.stopped


def test_a_setup_s_own_timeout_is_its_own_error():
    async def late():
        raise TimeoutError("no browser")

    with pytest.raises(TimeoutError, match="no browser"):
        LocalRun().run(Keeper(setup=late))


def test_what_setup_enters_clean_up_can_leave():
    # anyio's cancel scopes, and so MCP sessions, can be left in no other task.
    keeper = Keeper()
    LocalRun().run(keeper)
    (_, first), (_, last) = keeper.tasks
    assert first is last


def test_a_processor_that_exits_when_it_is_called_fails_its_own_row():
    class Exits(Keeper):
        def __call__(self, tasks, config):
            if tasks[0].id == "b":
                sys.exit(0)
            return super().__call__(tasks, config)

    local = LocalRun(*"abc")
    ending = local.run(Exits())
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses()["b/0"] == ("FAILED", True)
    assert local.statuses()["c/0"] == ("COMPLETED", True)
