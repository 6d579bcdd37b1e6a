"""Shows progress in a live line on a terminal, or else in a plain line now and then."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from holdfast.engine.progress.counters import Progress
from holdfast.rollout.threads.contain import in_background

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.2
WIDE = 120
BAR_WIDTH = 30
NARROW_BAR_WIDTH = 10


@contextlib.asynccontextmanager
async def displayed(
    progress: Progress, *, quiet: bool, every: float = PLAIN_SECONDS
) -> AsyncIterator[None]:
    """Shows `progress` on standard error during the block. If standard error is not a terminal,
    prints a line every `every` seconds instead. With `quiet`, shows nothing."""
    if quiet:
        yield
        return
    progress.shows_rewards = True
    show = _live(progress) if sys.stderr.isatty() else _plain(progress, every)
    try:
        async with in_background(show, name="progress"):
            yield
    finally:
        if progress.total and not progress.is_transient and not sys.stderr.isatty():
            _print(progress)


async def _plain(progress: Progress, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        _print(progress)


def _print(progress: Progress) -> None:
    """Prints the progress. If the reader of the output is gone, the work continues."""
    with contextlib.suppress(OSError):
        print(progress.line(), file=sys.stderr, flush=True)


async def _live(progress: Progress) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    console = Console(stderr=True)

    def drawn() -> Table:
        """Returns a bar and a line. A narrow terminal shows the beginning of the line."""
        table = Table.grid(padding=(0, 1))
        done, total = progress.bar
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        width = BAR_WIDTH if console.width >= WIDE else NARROW_BAR_WIDTH
        table.add_row(ProgressBar(total or None, done, width=width), progress.line())
        return table

    # A refused run draws nothing.
    while not progress.is_known:  # noqa: ASYNC110 - progress is plain counters
        await asyncio.sleep(LIVE_SECONDS)
    with (
        Live(
            drawn(),
            console=console,
            auto_refresh=False,
            transient=progress.is_transient,
            # Output of user code appears above the line, unless it goes into a file.
            redirect_stdout=sys.stdout.isatty(),
        ) as live,
        _logs_above(),
    ):
        try:
            while True:
                await asyncio.sleep(LIVE_SECONDS)
                live.update(drawn(), refresh=True)
        finally:
            live.update(drawn(), refresh=True)


@contextlib.contextmanager
def _logs_above() -> Iterator[None]:
    """Moves log output above the progress line until the end of the block. Log handlers keep the
    stream that they were made with, so each handler gets a new stream for this time."""
    changed = []
    for handler in _stream_handlers():
        if handler.stream is sys.__stderr__ and sys.stderr is not sys.__stderr__:
            changed.append((handler, handler.setStream(sys.stderr)))
        elif handler.stream is sys.__stdout__ and sys.stdout is not sys.__stdout__:
            changed.append((handler, handler.setStream(sys.stdout)))
    try:
        yield
    finally:
        for handler, stream in changed:
            if stream is not None:
                handler.setStream(stream)


def _stream_handlers() -> "list[logging.StreamHandler[Any]]":
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    handlers = {id(handler): handler for logger in loggers for handler in logger.handlers}
    return [
        handler
        for handler in handlers.values()
        if isinstance(handler, logging.StreamHandler)
        and not isinstance(handler, logging.FileHandler)
    ]
