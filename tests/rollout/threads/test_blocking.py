"""A coroutine from synchronous code, with or without a running loop."""

import asyncio
import contextvars
import threading

import pytest

from holdfast.rollout.threads.blocking import is_in_loop, run_blocking

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")


async def where() -> tuple[int, str]:
    await asyncio.sleep(0)
    return threading.get_ident(), NAME.get()


async def fails() -> None:
    raise KeyError("as it is")


def test_without_a_loop_it_runs_in_the_same_thread_and_leaves_the_current_loop_alone():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        assert run_blocking(where)[0] == threading.get_ident()
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_in_a_running_loop_it_has_a_thread_of_its_own_with_the_callers_context():
    async def notebook() -> None:
        NAME.set("mine")
        loop = asyncio.get_running_loop()
        thread, name = run_blocking(where)
        assert thread != threading.get_ident()
        assert name == "mine"
        assert asyncio.get_running_loop() is loop
        with pytest.raises(KeyError, match="as it is"):
            run_blocking(fails)

    asyncio.run(notebook())
    assert not is_in_loop()
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-sync"]
