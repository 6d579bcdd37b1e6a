"""Keeps user code from ending the process: `sys.exit()` in a rollout is one failure, no more."""

from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


class ExitCalled(RuntimeError):
    """User code called `sys.exit()`, or raised `KeyboardInterrupt`, inside a trajectory."""


async def contained(awaitable: Awaitable[Result]) -> Result:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitCalled(f"user code raised {error!r}") from error
