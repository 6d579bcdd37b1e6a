"""Ends the process even if user code hangs.

A task that ignores its cancellation, or a call that hangs in a thread, would keep the process alive
forever after the run is over. By then the report is printed, the journal is closed and every lease
is returned, so the process can end at once.
"""

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PREFIX = "holdfast-user"
WAIT_SECONDS = 2.0


class Leaving:
    """Ends the process after the run, even if user code hangs. Create this object when the loop
    begins, so that it knows the threads that `asyncio.to_thread` starts."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix=PREFIX)
        asyncio.get_running_loop().set_default_executor(self._threads)

    def end_if_user_code_hangs(self, code: int) -> None:
        """Ends the process with `code` if the user's tasks or threads would keep it alive."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if _tasks_left() or _threads_left():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _tasks_left() -> bool:
    return any(task is not asyncio.current_task() for task in asyncio.all_tasks())


def _threads_left() -> bool:
    deadline = time.monotonic() + WAIT_SECONDS
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(PREFIX)]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return any(thread.is_alive() for thread in threads)
