"""Handles SIGINT and SIGTERM during an evaluation, so that work in flight becomes durable first.

The first signal stops the run gracefully. A second signal interrupts at once, which is safe, too.
If user code keeps the event loop busy, the first signal waits for that code. The second signal then
only cancels the evaluation, and the third interrupts at any line.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from holdfast.engine.stop import Stop

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Raised when a signal stopped the evaluation. The same command continues it."""

    def __init__(self, number: signal.Signals, *, is_new: bool = False):
        """`is_new` says that the command began another run, and would begin yet another one if
        repeated."""
        command = "the same command without --holdfast-new" if is_new else "the same command"
        super().__init__(f"{number.name}: stopped; what is done is kept, {command} goes on")
        self.signal = number


class Interruption:
    """The signal that stopped the evaluation, or None."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None


@contextmanager
def interruptible(stop: Stop) -> Iterator[Interruption]:
    """Requests a stop at the first signal while the body runs. Does nothing outside the main
    thread."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in WATCHED}

    def handle(number: int, frame: FrameType | None) -> None:
        # Not handlers of the loop: those wait for the loop, which user code may block.
        if interruption.received is not None:
            _put_back(before)
            signal.raise_signal(number)
            return
        interruption.received = signal.Signals(number)
        loop.call_soon_threadsafe(stop.request, f"received {interruption.received.name}")

    for number in WATCHED:
        signal.signal(number, handle)
    try:
        yield interruption
    finally:
        _put_back(before)


def _put_back(handlers: "Mapping[signal.Signals, signal._HANDLER]") -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
