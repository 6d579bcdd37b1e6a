"""EpisodeSet: the environments of one attempt, brought back together and closed together."""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.rollout.episodes.episode import Episode


class EpisodeSet:
    """In the order of their opening."""

    def __init__(self) -> None:
        self._episodes: list[Episode] = []
        self._is_live = False
        self._going_live = asyncio.Lock()

    def __iter__(self) -> "Iterator[Episode]":
        return iter(self._episodes)

    def add(self, episode: "Episode") -> None:
        self._episodes.append(episode)

    async def go_live(self) -> None:
        """Brings each environment back to where the replayed steps left it; once."""
        if self._is_live:
            return
        async with self._going_live:
            if not self._is_live:
                for episode in self._episodes:
                    await episode.revive()
                self._is_live = True

    async def keep(self) -> None:
        """Makes the present state of each durable, where it can be restored."""
        for episode in self._episodes:
            await episode.keep()

    async def close(self) -> None:
        """Closes all, the last one first. A cancelled caller waits for that: each close has its
        deadline, and what was begun is let finish."""
        if not self._episodes:
            return
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})
            raise

    async def _close(self) -> None:
        for episode in reversed(self._episodes):
            await episode.close()
