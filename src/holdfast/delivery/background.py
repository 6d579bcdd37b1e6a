"""Work beside a trainer's own: what ends it too early is not lost, wherever nobody awaits it."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("holdfast.delivery")


class BackgroundTask:
    """Runs until `end`, which cancels it."""

    def __init__(self, work: Coroutine[Any, Any, None], *, name: str):
        self._name = name
        self._task = asyncio.create_task(work, name=name)
        self._is_reported = False

    def check(self) -> None:
        """Raises what has ended it."""
        if self._task.done():
            self._is_reported = True
            self._task.result()

    async def end(self) -> None:
        """What has ended it before is logged where no `check` has raised it."""
        self._task.cancel()
        await asyncio.wait({self._task})
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and not self._is_reported:
            _log.warning("%s: %s: %s", self._name, type(error).__name__, error)
