"""Threads for blocking calls: short ones share, slow ones hold nobody up."""

import asyncio
import contextvars
import threading
import time

import pytest

from holdfast.rollout.threads.pool import DaemonThreads, StillRunning


async def test_calls_that_wait_for_each_other_all_get_a_thread():
    pool, together = DaemonThreads("waiters"), threading.Barrier(9, timeout=30)
    assert sorted(await asyncio.gather(*(pool.run(together.wait) for _ in range(9)))) == list(
        range(9)
    )


async def test_short_calls_share_few_threads_and_each_gets_its_own_answer():
    pool, used = DaemonThreads("short"), set()

    def call(number: int) -> int:
        used.add(threading.get_ident())
        return number

    assert (await asyncio.gather(*(pool.run(lambda n=n: call(n)) for n in range(2000)))) == list(
        range(2000)
    )
    assert len(used) < 100


async def test_a_short_call_is_not_held_up_by_a_slow_one():
    pool, release = DaemonThreads("mixed"), threading.Event()
    slow = asyncio.create_task(pool.run(lambda: release.wait(30)))
    await asyncio.sleep(0)
    assert await pool.run(lambda: "short") == "short"
    assert not slow.done()
    release.set()
    assert (await slow) is True


def test_a_call_that_takes_too_long_is_told_and_left_behind():
    pool, release = DaemonThreads("late"), threading.Event()

    async def main():
        with pytest.raises(StillRunning):
            await pool.run(lambda: release.wait(30), left=lambda: 0.0)
        return await pool.run(lambda: "goes on")

    try:
        assert asyncio.run(main()) == "goes on"
    finally:
        release.set()


async def test_a_call_may_get_more_time_meanwhile():
    pool, release = DaemonThreads("extended"), threading.Event()
    left = iter([0.0, 30.0])

    def seconds_left():
        seconds = next(left)
        if seconds:
            release.set()
        return seconds

    assert (await pool.run(lambda: release.wait(30), left=seconds_left)) is True


async def test_a_call_that_was_given_up_before_it_began_is_never_made(monkeypatch):
    monkeypatch.setattr(
        "holdfast.rollout.threads.pool.PATIENCE_SECONDS", 600.0
    )  # There is but one thread.
    pool, release, made = DaemonThreads("given up"), threading.Event(), []
    first = asyncio.create_task(pool.run(lambda: release.wait(30)))
    await asyncio.sleep(0)
    second = asyncio.create_task(pool.run(lambda: made.append(1)))
    await asyncio.sleep(0)  # It waits in line: the first one's thread is at work.
    second.cancel()
    await asyncio.wait({second})
    release.set()
    await first
    await pool.run(lambda: made.append(2))
    assert made == [2]


async def test_the_callers_context_is_there_and_the_calls_own_changes_stay_with_it():
    pool, word = DaemonThreads("contexts"), contextvars.ContextVar("word", default="none")

    def call() -> str:
        result = word.get()
        word.set("changed")
        return result

    async def run_in_thread(value: str) -> str:
        word.set(value)
        return f"{await pool.run(call)} {word.get()}"

    assert (await asyncio.gather(run_in_thread("a"), run_in_thread("b"))) == ["a a", "b b"]


def test_one_pool_serves_one_loop_after_another_and_several_at_once():
    pool, together = DaemonThreads("loops"), threading.Barrier(3, timeout=30)
    for number in range(5):
        assert asyncio.run(pool.run(lambda n=number: n)) == number
    results = []
    loops = [
        threading.Thread(target=lambda: results.append(asyncio.run(pool.run(together.wait))))
        for _ in range(3)
    ]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(30)
    assert sorted(results) == [0, 1, 2]


def test_threads_that_nobody_needs_go(monkeypatch):
    monkeypatch.setattr("holdfast.rollout.threads.pool.IDLE_SECONDS", 0.02)
    pool = DaemonThreads("leaving")
    assert asyncio.run(pool.run(lambda: 1)) == 1
    deadline = time.monotonic() + 60
    while any(thread.name == "holdfast-leaving" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert asyncio.run(pool.run(lambda: 2)) == 2
