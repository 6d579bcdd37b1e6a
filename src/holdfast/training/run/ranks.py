"""The ranks of a training run: started before anything is loaded, and watched until its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from holdfast.training.ranks.group import RankGroup
from holdfast.training.ranks.launch import open_ranks
from holdfast.training.run.folder import RANKS
from holdfast.training.run.loop import in_thread
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.settings import TrainingSettings


@asynccontextmanager
async def join_ranks(
    settings: TrainingSettings, folder: Path, progress: TrainingProgress
) -> AsyncIterator[RankGroup]:
    if settings.ranks > 1:
        progress.enter(f"starting {settings.ranks} ranks")
    opening = open_ranks(settings.ranks, settings.device, logs=folder / RANKS)
    stack = ExitStack()
    try:
        yield await in_thread(stack.enter_context, opening)
    finally:
        await in_thread(stack.close)


async def until_death(ranks: RankGroup) -> None:
    """Raises `RankDied` when a rank has died; between two steps, too, while nobody waits for it."""
    loop, died = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # The loop may be closed by now.
            loop.call_soon_threadsafe(died.set)

    ranks.on_death(notify)
    await died.wait()
    ranks.check_alive()
