"""SIGINT and SIGTERM in the middle of an evaluation: what is in flight becomes durable first.

The first signal stops the run with care; another one interrupts at once, which is safe, too.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.engine.stop import Stop

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The evaluation was stopped by a signal; the same command goes on."""

    def __init__(self, number: signal.Signals):
        super().__init__(f"{number.name}: stopped; what is done is kept, the same command goes on")
        self.signal = number


class Interruption:
    """Which signal stopped it, if one did."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None


@contextmanager
def interruptible(stop: Stop) -> Iterator[Interruption]:
    """Watches while the body runs; elsewhere than in the main thread there is nothing to watch."""
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in WATCHED}

    def handle(number: signal.Signals) -> None:
        if found.received is not None:
            for one in WATCHED:
                loop.remove_signal_handler(one)
                signal.signal(one, before[one])
            signal.raise_signal(number)
            return
        found.received = number
        stop.request(f"received {number.name}")

    for number in WATCHED:
        loop.add_signal_handler(number, handle, number)
    try:
        yield found
    finally:
        for number in WATCHED:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
