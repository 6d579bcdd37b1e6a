"""The event loop of a command goes on, whatever user code raises in it."""

import asyncio
import gc
import os
import signal
import sys

import pytest

from holdfast.engine.guards.event_loop import (
    OBJECTS_BETWEEN_COLLECTIONS,
    MainCancelled,
    fewer_collections,
    run_in_own_loop,
)
from support.engine.local_run import LocalRun, turn


@pytest.fixture
def handled_signals():
    """As while a run works: no key that is pressed raises anything."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def plain_signals():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def one_turn(t):
    await turn(t)


async def exits():
    sys.exit(0)


async def interrupts():
    raise KeyboardInterrupt


@pytest.mark.parametrize("helper", [exits, interrupts])
def test_a_task_of_a_rollout_that_exits_fails_its_own_trajectory(helper, handled_signals, caplog):
    async def rollout(t):
        await turn(t)
        if t.key.task == "b":
            await asyncio.gather(helper())
        return 1.0

    local = LocalRun(*"abc")
    ending = run_in_own_loop(local.work(rollout))
    local.assert_nothing_left()
    assert (ending.stopped, ending.fatal) == ("", None)
    assert {name: status for name, (status, _) in local.statuses().items()} == {
        "a/0": "COMPLETED",
        "b/0": "FAILED",
        "c/0": "COMPLETED",
    }
    (cause,) = local.report().causes
    assert cause.root.startswith("ExitCalled: user code raised")
    assert f"({helper.__name__})" in caplog.text, "and the line is named"


def test_a_task_of_a_scorer_that_exits_fails_its_own_trajectory(handled_signals):
    async def scorer(view):
        if view.key.task == "b":
            await asyncio.create_task(exits())
        return 1.0

    local = LocalRun(*"ab")
    run_in_own_loop(local.work(one_turn, scorer))
    assert local.statuses() == {"a/0": ("COMPLETED", True), "b/0": ("FAILED", True)}


def test_a_rollout_that_stops_the_loop_or_exits_in_a_callback_stops_nobody(caplog):
    async def rollout(t):
        loop = asyncio.get_running_loop()
        if t.key.task == "a":
            loop.stop()
        else:
            loop.call_soon(sys.exit, 3)
        await turn(t)

    local = LocalRun(*"abc")
    run_in_own_loop(local.work(rollout))
    assert set(local.statuses().values()) == {("COMPLETED", True)}
    assert "stopped the event loop; the run goes on" in caplog.text
    assert "SystemExit(3) was raised" in caplog.text


def test_what_the_command_itself_raises_or_returns_is_its_end():
    async def raises(error):
        raise error

    async def returns():
        return 5

    assert run_in_own_loop(returns()) == 5
    for error in (RuntimeError("stopped"), SystemExit(2), KeyError("a")):
        with pytest.raises(type(error)) as raised:
            run_in_own_loop(raises(error))
        assert raised.value is error


def test_a_command_that_is_cancelled_from_inside_says_so():
    async def rollout(t):
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turn(t)

    with pytest.raises(MainCancelled):
        run_in_own_loop(LocalRun().work(rollout))


def test_a_key_that_is_pressed_before_signals_are_handled_ends_it(plain_signals):
    ended = []

    async def main():
        try:
            # In nobody's task: while the loop waits for something to happen.
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(5)
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_in_own_loop(main())
    assert ended == [True]


# --- the collector of a process that is Holdfast's


def test_who_overlap_put_back_what_the_first_found():
    before = gc.get_threshold()
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == OBJECTS_BETWEEN_COLLECTIONS
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_collections_that_are_off_stay_off():
    before = gc.get_threshold()
    try:
        gc.set_threshold(0)
        with fewer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
