"""The environments of an attempt: brought back once, closed in reverse, whatever is cancelled."""

import asyncio

from holdfast.rollout.replay.session import EpisodeSet


class Episode:
    def __init__(self, name: str, done: list[str], *, closing: asyncio.Event | None = None):
        self.name, self.done, self.closing = name, done, closing

    async def revive(self) -> None:
        await asyncio.sleep(0)
        self.done.append(f"{self.name} live")

    async def keep(self) -> None:
        self.done.append(f"{self.name} kept")

    async def close(self) -> None:
        if self.closing is not None:
            await self.closing.wait()
        self.done.append(f"{self.name} closed")


async def test_all_go_live_once_also_when_two_steps_begin_at_once():
    done: list[str] = []
    episodes = EpisodeSet()
    for name in "ab":
        episodes.add(Episode(name, done))
    await asyncio.gather(episodes.go_live(), episodes.go_live())
    await episodes.keep()
    assert ([episode.name for episode in episodes]) == ["a", "b"]
    assert done == ["a live", "b live", "a kept", "b kept"]


async def test_the_last_one_is_closed_first_and_a_cancelled_caller_waits_for_that():
    done: list[str] = []
    episodes, closing = EpisodeSet(), asyncio.Event()
    episodes.add(Episode("a", done))
    episodes.add(Episode("b", done, closing=closing))
    job = asyncio.create_task(episodes.close())
    await asyncio.sleep(0)
    job.cancel()
    await asyncio.sleep(0)
    closing.set()
    await asyncio.wait({job})
    assert job.cancelled()
    assert done == ["b closed", "a closed"]
