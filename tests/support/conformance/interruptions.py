"""Interruptions that have to come before a reply ends."""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.policy.policy import Completion, Draft, Request
from holdfast.records.encoding.tokens import count
from support.conformance.engines import Engine
from support.conformance.samples import (
    drawn,
    streamed,
)

CHANCES = 6
Result = TypeVar("Result")
SOON = 24
"""Tokens after which it is interrupted."""


class TooLate(Exception):
    """The reply ended before it was interrupted: on a busy machine, an engine may be faster than
    whoever is to interrupt it."""


def in_time(interrupting: Callable[[], Result]) -> Result:
    """What comes of a reply that was interrupted."""
    for _ in range(CHANCES):
        with contextlib.suppress(TooLate):
            return interrupting()
    raise AssertionError(f"{CHANCES} replies ended before they were interrupted")


class Interruption:
    """Does something to the engine, once, when enough tokens of a completion are durable."""

    def __init__(self, deed: threading.Thread):
        self._deed = deed

    async def saw(self, draft: Draft) -> None:
        if draft.start + count(draft.ids) >= SOON and self._deed.ident is None:
            self._deed.start()

    def done(self) -> None:
        if self._deed.ident is None:
            raise TooLate
        self._deed.join(300)
        assert not self._deed.is_alive()


def interrupted(engine: Engine, request: Request, deed: Callable[[], None]) -> Completion:
    """The completion, after `deed` was done to its engine in the middle of it."""

    def once() -> Completion:
        interruption = Interruption(threading.Thread(target=deed))
        (completion,) = drawn(engine, streamed(request, interruption.saw, every=8))
        interruption.done()
        return completion

    return in_time(once)
