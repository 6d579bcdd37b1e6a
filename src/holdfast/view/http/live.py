"""Tells browsers that a page has changed, by server-sent events.

The server checks the journal once for all browsers that show the same page. An event holds only the
number of the page's version. The browser then loads the page again, and the server makes each
version once for all browsers. A slow browser gets only the newest number. The pause between two
checks grows while nothing changes, and is longer if a check takes longer.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress

from aiohttp import web

from holdfast.records.errors import HoldfastError

LEAST_SECONDS, MOST_SECONDS = 1.0, 10.0
COST_FACTOR = 15.0
"""The pause after a check of the journal takes at least this many times as long as the check."""
BEAT_SECONDS = 15.0
MAX_WATCHERS = 200
Look = Callable[[], Awaitable[Hashable]]


class _Topic:
    """A page that is watched."""

    def __init__(self) -> None:
        self.version = 0
        self.changed = asyncio.Event()
        self.watchers = 0
        self.polling: asyncio.Task[None] | None = None

    def announce(self) -> None:
        self.version += 1
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Hub:
    """The pages that browsers watch. `stream` sends events to one browser. The server stops
    checking a page when its last browser leaves."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._pages: OrderedDict[tuple[str, str, int], str] = OrderedDict()

    @property
    def watchers(self) -> int:
        return sum(topic.watchers for topic in self._topics.values())

    async def page(self, topic: str, url: str, make: Callable[[], Awaitable[str]]) -> str:
        """Returns the page at `url`, which `make` renders. While browsers watch the topic, the page
        is rendered once for each version of the topic."""
        known = self._topics.get(topic)
        if known is None:
            return await make()
        key = (topic, url, known.version)
        if key not in self._pages:
            self._pages[key] = await make()
            while len(self._pages) > 16:
                self._pages.popitem(last=False)
        return self._pages[key]

    async def stream(self, request: web.Request, name: str, look: Look) -> web.StreamResponse:
        if self.watchers >= MAX_WATCHERS:
            raise web.HTTPServiceUnavailable(text="too many pages are open")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        topic = self._topics.setdefault(name, _Topic())
        topic.watchers += 1
        if topic.polling is None:
            topic.polling = asyncio.create_task(_poll(topic, look))
        try:
            with suppress(ConnectionResetError):
                await _follow(response, topic)
        finally:
            topic.watchers -= 1
            if not topic.watchers:
                topic.polling.cancel()
                self._topics.pop(name, None)
        return response

    async def close(self) -> None:
        polling = [topic.polling for topic in self._topics.values() if topic.polling is not None]
        for task in polling:
            task.cancel()
        if polling:
            await asyncio.wait(polling)


async def _follow(response: web.StreamResponse, topic: _Topic) -> None:
    while True:
        changed = topic.changed
        await response.write(f"data: {topic.version}\n\n".encode())
        while not changed.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), BEAT_SECONDS)
            if not changed.is_set():
                await response.write(b": still there\n\n")


async def _poll(topic: _Topic, look: Look) -> None:
    before: Hashable = None
    pause = LEAST_SECONDS
    while True:
        start = time.monotonic()
        try:
            now: Hashable = await look()
        except HoldfastError as error:  # The page says it, when it is loaded again.
            now = str(error)
        cost = time.monotonic() - start
        is_first, is_same = before is None, now == before
        if not is_first and not is_same:
            topic.announce()
        before = now
        pause = min(pause * 1.5, MOST_SECONDS) if is_same else LEAST_SECONDS
        await asyncio.sleep(max(pause, COST_FACTOR * cost))
