"""Tasks of user code that are ended: cancelled together, and never reported as lost."""

import asyncio
import gc

import pytest

from holdfast.records.failure import as_exception
from holdfast.rollout.threads.contain import end_tasks


def test_tasks_that_fail_in_their_cancellation_are_not_reported_as_lost_when_their_end_is_cut_off():
    reported = []

    async def fails(started: asyncio.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise RuntimeError("in its cancellation")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        starts = [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.create_task(fails(start)) for start in starts]
        for start in starts:
            await start.wait()
        ending = asyncio.create_task(end_tasks(tasks))
        await asyncio.sleep(0)
        ending.cancel()  # Whoever ends them is ended itself.
        await asyncio.wait({ending})
        await asyncio.wait(tasks)
        tasks.clear()
        gc.collect()

    asyncio.run(main())
    assert not reported


def test_what_is_meant_for_the_process_is_named():
    assert str(as_exception(SystemExit(3))) == "user code raised SystemExit(3)"
    with pytest.raises(pytest.skip.Exception) as skipped:
        pytest.skip("no reason")
    assert "Skipped" in str(as_exception(skipped.value))
