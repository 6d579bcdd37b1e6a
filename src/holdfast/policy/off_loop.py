"""Work that takes longer for longer prompts: short, on the event loop; long, in a thread.

Rendering, encoding and parsing a prompt of megabytes takes seconds. On the loop, everything else in
the process would stand still for as long. A thread costs a moment of its own, so small work, which
is nearly all there is, stays where it is.

Invariant: only pure functions come here. Whoever is cancelled gives up the result, and no more.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

LARGE = 1 << 15
"""Characters or tokens. A tokenizer takes about a second for each million of characters."""
MAX_THREADS = 4
"""Each of them may hold hundreds of bytes for every token of a prompt."""
Result = TypeVar("Result")


async def off_loop(function: Callable[[], Result], *, size: int) -> Result:
    """What the function returns or raises; in a thread where its work is of a `LARGE` size."""
    if size < LARGE:
        return function()
    threads = _threads(os.getpid())
    return await asyncio.get_running_loop().run_in_executor(threads, function)


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Of this process: a fork has none of the threads of the one that it came from. Not the loop's
    own, which user code may fill with calls that wait for a reply."""
    # Half of the cores: what is left is for the loop, which waits for the interpreter's lock too.
    most = max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
    return ThreadPoolExecutor(most, thread_name_prefix="holdfast-large-prompt")
