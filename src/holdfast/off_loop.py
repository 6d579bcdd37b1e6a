"""Runs work on large prompts in a thread instead of on the event loop.

Rendering, encoding and parsing a prompt of megabytes takes seconds and would block the loop for as
long. A thread has a cost of its own, so small prompts stay on the loop. Nearly all prompts are
small.

Work on megabytes has threads of its own, so that one huge prompt does not delay large ones.

Invariant: only pure functions run here. A cancelled caller loses only the result.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

MIN_THREAD_SIZE = 1 << 15
"""The smallest size, in characters or tokens, of work that runs in a thread. A tokenizer takes
about a second for a million characters."""
HUGE_SIZE = 1 << 20
MAX_THREADS = 4
"""The most threads. Each may need hundreds of bytes for every token of a prompt."""
Result = TypeVar("Result")


async def off_loop(function: Callable[[], Result], *, size: int) -> Result:
    """Returns the function's result. Runs the function in a thread if `size` is at least
    `MIN_THREAD_SIZE`, or else directly on the event loop."""
    if size < MIN_THREAD_SIZE:
        return function()
    threads = _threads(os.getpid(), is_huge=size >= HUGE_SIZE)
    return await asyncio.get_running_loop().run_in_executor(threads, function)


@lru_cache(maxsize=2)
def _threads(process: int, *, is_huge: bool) -> ThreadPoolExecutor:
    """Returns the threads for large or huge prompts in the process with this id. A forked process
    gets new threads, because the threads of its parent do not run in it. The event loop's default
    threads are not used, because user code may fill them with calls that wait for a reply."""
    # At most half of the cores, because the loop also needs the interpreter's lock.
    most = max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
    name = f"holdfast-{'huge' if is_huge else 'large'}-prompt"
    return ThreadPoolExecutor(most, thread_name_prefix=name)
