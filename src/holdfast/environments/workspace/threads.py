"""Runs blocking work of a workspace off the event loop.

A cancelled caller waits for the end of the work, so that nothing writes into a folder that is being
removed.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.rollout.threads.mailbox import mailbox_of, set_exception, set_result

Result = TypeVar("Result")
CANCEL_SECONDS = 60.0


async def in_thread(
    function: Callable[[], Result], *, interrupt: Callable[[], None] | None = None
) -> Result:
    """Runs `function` in a new thread and returns its result. If the caller is cancelled, calls
    `interrupt` and waits for the end of the function.

    A new thread is needed because a process that dies with its parent dies when the *thread* that
    started it ends.
    """
    loop = asyncio.get_running_loop()
    mailbox = mailbox_of(loop)
    future: asyncio.Future[Result] = loop.create_future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:
            mailbox.post(set_exception, future, error)
        else:
            mailbox.post(set_result, future, result)

    threading.Thread(target=work, name="holdfast-workspace", daemon=True).start()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
        done, _ = await asyncio.wait([future], timeout=CANCEL_SECONDS)
        for task in done:
            task.exception()  # Retrieved, so that asyncio does not log it.
        raise
