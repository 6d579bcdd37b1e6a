"""Showing progress: a live line on a terminal, a plain one now and then elsewhere."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from holdfast.engine.progress import Progress

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.2


@contextlib.asynccontextmanager
async def displayed(progress: Progress, *, quiet: bool) -> AsyncIterator[None]:
    """Shows `progress` on standard error while the body runs."""
    if quiet:
        yield
        return
    shower = asyncio.create_task(
        _live(progress) if sys.stderr.isatty() else _plain(progress), name="progress"
    )
    try:
        yield
    finally:
        shower.cancel()
        await asyncio.gather(shower, return_exceptions=True)
        if progress.total and not sys.stderr.isatty():
            _print(progress)


async def _plain(progress: Progress) -> None:
    while True:
        await asyncio.sleep(PLAIN_SECONDS)
        _print(progress)


def _print(progress: Progress) -> None:
    """A reader of the progress that goes away is no reason to stop."""
    with contextlib.suppress(OSError):
        print(progress.line(), file=sys.stderr, flush=True)


async def _live(progress: Progress) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def drawn() -> Table:
        table = Table.grid(padding=(0, 1))
        bar = ProgressBar(progress.total or 1, progress.done_before + progress.done, width=30)
        table.add_row(bar, progress.line())
        return table

    # Nothing is drawn for a run that is refused.
    while not progress.total:  # noqa: ASYNC110 - progress is plain counters
        await asyncio.sleep(LIVE_SECONDS)
    with Live(
        drawn(),
        console=Console(stderr=True),
        auto_refresh=False,
        # What user code prints goes above the line; but not if it is meant for a file.
        redirect_stdout=sys.stdout.isatty(),
    ) as live:
        try:
            while True:
                await asyncio.sleep(LIVE_SECONDS)
                live.update(drawn(), refresh=True)
        finally:
            live.update(drawn(), refresh=True)
