"""An event loop whose time jumps to the next moment at which something is due.

Hours of sleeping and waiting take only as long as the computing between them, and events keep their
order. It works only for code that waits with asyncio, because threads, sockets and other processes
use the real clock.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class NothingDue(RuntimeError):
    """Raised when every task waits and no event can wake a task: a deadlock."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: "VirtualTimeLoop"):
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NothingDue("nothing is due, and nothing will be: everything waits for ever")
        self._loop.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time, `loop.time()`, is `now`. It begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now


def run_in_virtual_time(main: Coroutine[Any, Any, Result]) -> tuple[Result, float]:
    """Runs `main`. Returns its result and the number of virtual seconds that it took. Raises
    `NothingDue` for a deadlock."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(main)
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return result, loop.now
