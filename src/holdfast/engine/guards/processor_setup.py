"""Runs a processor's own setup and clean-up, which is user code outside of any trajectory.

Both run in the caller's task, because some contexts (anyio's cancel scopes, and therefore MCP
sessions) can be left only in the task that entered them.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.engine.stop import Stop
from holdfast.records.errors import HoldfastError
from holdfast.records.failure import as_exception
from holdfast.records.foreign import ExitCalled
from holdfast.rollout.processors.processor import RolloutProcessor
from holdfast.rollout.threads.contain import contain

CLEAN_UP_SECONDS = 300.0


class ProcessorBroken(HoldfastError):
    """The processor's own setup or clean-up failed, outside of any trajectory."""

    def __init__(self, message: str, cause: BaseException):
        super().__init__(message)
        self.__cause__ = cause


async def set_up(processor: RolloutProcessor, stop: Stop) -> None:
    """Runs the processor's setup, and cancels it if the run is to stop.

    Raises the error of the setup. Raises `ProcessorBroken` if the setup tries to end the process.
    """

    async def give_up() -> None:
        await stop.event.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(give_up(), name="stop of the setup")
            try:
                await contain(_called(processor.setup))
            finally:
                watch.cancel()
                await asyncio.wait({watch})
    except ExitCalled as error:
        raise ProcessorBroken(f"setup of the processor: {error}", error) from error
    except TimeoutError:
        if not limit.expired():
            raise


async def clean_up(processor: RolloutProcessor, stop: Stop) -> None:
    """Runs the processor's clean-up. An error stops the run, and leaves its results as they are."""
    try:
        async with asyncio.timeout(CLEAN_UP_SECONDS) as limit:
            await contain(_called(processor.acleanup))
    except Exception as error:
        late = f"did not end within {CLEAN_UP_SECONDS:g} s"
        root = as_exception(error)
        what = late if limit.expired() else f"raised {root!r}"
        stop.fail(ProcessorBroken(f"acleanup of the processor {what}", root))


async def _called(method: Callable[[], Awaitable[None] | None]) -> None:
    returned = method()
    if returned is not None:
        await returned
