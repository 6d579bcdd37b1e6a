"""Handles SIGINT and SIGTERM. After the first signal, work in flight is finished; the second signal
ends the process at once, as does the first one if nothing is in flight."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from holdfast.engine.stop import Stop
from holdfast.records.exit_codes import Exit

CODES = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


class Signals:
    """Watches for both signals while the run works."""

    def __init__(
        self,
        stop: Stop,
        *,
        resume: str,
        quiet: bool = False,
        is_idle: Callable[[], bool] = lambda: False,
    ):
        """`resume` is the command that continues the run. `quiet` is set if another process prints
        the messages. While `is_idle`, nothing is in flight, so the first signal ends the
        process."""
        self._stop = stop
        self._resume = resume
        self._quiet = quiet
        self._is_idle = is_idle
        self.received: Exit | None = None
        self._count = 0

    def watch(self) -> None:
        """Watches until the loop is closed."""
        loop = asyncio.get_running_loop()
        for number in CODES:
            loop.add_signal_handler(number, self._stop_with_care, number)
            # Also as Python's own handler, because user code may block the loop, even for ever. The
            # signal must interrupt system calls (no `siginterrupt(False)`), or a blocked call would
            # hide it.
            signal.signal(number, self._counted)

    def _counted(self, number: int, _: object) -> None:
        self._count += 1
        if self._count > 1 or self._is_idle():
            # Every acknowledged record is durable, so there is nothing to save.
            if not self._quiet:
                last_word(f"holdfast: stopped at once\nto go on: {self._resume}")
            os._exit(CODES[signal.Signals(number)])

    def _stop_with_care(self, number: signal.Signals) -> None:
        self.received = CODES[number]
        self._stop.request(f"received {number.name}")
        if self._quiet:
            return
        print(
            f"\nholdfast: {number.name}: finishing what is in flight; again to stop at once",
            file=sys.stderr,
            flush=True,
        )


def last_word(text: str) -> None:
    """Prints a last line directly to the terminal, and shows the cursor, which the progress line
    may have hidden. Does not use `sys.stderr`, which the progress line has replaced, or Python's
    buffers, which a signal may have interrupted."""
    terminal = sys.__stderr__
    if terminal is not None:
        prefix = "\n\x1b[?25h" if terminal.isatty() else ""
        with suppress(OSError):
            os.write(terminal.fileno(), f"{prefix}{text}\n".encode("utf-8", "backslashreplace"))
