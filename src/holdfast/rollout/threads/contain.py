"""Keeps user code from ending the process: `sys.exit()` only fails the rollout that calls it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from holdfast.records.failure import as_exception
from holdfast.records.foreign import readable

MAX_CANCELLATIONS = 3
CANCEL_AGAIN_SECONDS = 10.0
LOOK_SECONDS = 0.1
"""The least time between two checks of a deadline that may change."""
Result = TypeVar("Result")


async def end_task(job: "asyncio.Task[Result]") -> None:
    """Cancels a task of user code and waits for its end, for a limited time. A task that ignores
    its cancellation is cancelled again several times, and then left running."""
    _retrieve_error_at_end(job)
    for _ in range(MAX_CANCELLATIONS):
        if job.done():
            break
        job.cancel()
        await asyncio.wait({job}, timeout=CANCEL_AGAIN_SECONDS)


async def end_tasks(jobs: "Sequence[asyncio.Task[Result]]") -> None:
    """Ends several tasks as `end_task` does. Cancels all of them before it waits for any."""
    for job in jobs:
        _retrieve_error_at_end(job)
        job.cancel()
    for job in jobs:
        await end_task(job)


def _retrieve_error_at_end(job: "asyncio.Task[Result]") -> None:
    """Retrieves the task's error, now or when the task ends, so that asyncio does not report an
    error that was never retrieved."""
    if job.done():
        _retrieve_error(job)
    else:
        job.add_done_callback(_retrieve_error)


def _retrieve_error(job: "asyncio.Task[Result]") -> None:
    if not job.cancelled():
        job.exception()


@asynccontextmanager
async def in_background(*work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Runs coroutines while the block runs. At the end of the block, cancels them and waits for
    their end."""
    tasks = [asyncio.create_task(coroutine, name=name) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def to_its_end(work: Awaitable[Result]) -> Result:
    """Returns the result of the work. If the caller is cancelled, waits until the work is done, and
    raises `CancelledError` then."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        _ = running.cancelled() or running.exception()
        raise


async def finishes_within(job: "asyncio.Future[Result]", seconds: float | None) -> bool:
    """Waits until the job ends, but at most for `seconds`. Returns whether the job has ended.

    It replaces `asyncio.wait` for a single job at a lower cost.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = None if seconds is None else loop.call_later(seconds, wake)
    job.add_done_callback(wake)
    try:
        await waiter
    finally:
        job.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
    return job.done()


async def finishes_in_time(job: "asyncio.Future[Result]", left: Callable[[], float]) -> bool:
    """Waits until the job ends or the time is up. Returns whether the job has ended.

    `left` returns the seconds that are left. It is called again when these seconds are over,
    because a deadline may have been moved.
    """
    seconds = left()
    while not await finishes_within(job, max(0.0, seconds)):
        if (seconds := left()) <= 0:
            return False
        seconds = max(LOOK_SECONDS, seconds)
    return True


async def contain(awaitable: Awaitable[Result]) -> Result:
    """Awaits the awaitable and returns its result. Any error of it, even `SystemExit`, is raised as
    an `Exception`. A cancellation of the present task passes through."""
    try:
        return await awaitable
    except Exception as error:
        contained = readable(error)
        if contained is error:
            raise
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        contained = error
    except BaseException as error:
        contained = error
    raise as_exception(contained)
