"""Interruptible lets other code end a try at an endpoint with an error."""

import asyncio
from typing import Protocol

from holdfast.records.errors import PolicyError


class Tries(Protocol):
    """An object that keeps track of the tries under way."""

    def add_try(self, attempt: "Interruptible") -> None: ...
    def remove_try(self, attempt: "Interruptible") -> None: ...


class Interruptible:
    """A context around one try at an endpoint. If other code interrupts the try, the context raises
    the error of the interruption."""

    def __init__(self, endpoint: "Tries", name: str):
        self._endpoint = endpoint
        self.name = name
        """The name of the requested model."""
        self._task: asyncio.Task[object] | None = None
        self._error: PolicyError | None = None

    def __enter__(self) -> "Interruptible":
        self._task = asyncio.current_task()
        self._endpoint.add_try(self)
        return self

    def interrupt(self, error: PolicyError) -> None:
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        task, self._task = self._task, None
        self._endpoint.remove_try(self)
        if self._error is None or task is None:
            return
        # As in asyncio.timeout: there may be another cancellation as well.
        if task.uncancel() <= 0 and kind is asyncio.CancelledError:
            raise self._error from None
