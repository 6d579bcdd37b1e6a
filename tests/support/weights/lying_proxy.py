"""A proxy before an engine that answers 200 to updates of weights and does something else."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import aiohttp
from aiohttp import web

Lie = Callable[[str, bytes], "bytes | None"]
"""By a path and the body: the answer that is given without asking the engine, or None."""


class LyingProxy:
    """Serves in a thread of its own. `lie` may be replaced at any time; `delay` is waited before
    each request that is not a sample."""

    def __init__(self, engine_url: str, *, lie: Lie = lambda path, body: None, delay: float = 0.0):
        self.lie, self.delay, self.model = lie, delay, ""
        self._engine_url = engine_url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event
        self.url = ""

    def __enter__(self) -> "LyingProxy":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as self._session:
            self._ready.set()
            await self._ended.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if (answer := self.lie(request.path, body)) is not None:
            return web.Response(body=answer, content_type="application/json")
        if not request.path.endswith("generate"):
            await asyncio.sleep(self.delay)
        headers = {"Content-Type": "application/json"} if body else {}
        async with self._session.request(
            request.method, f"{self._engine_url}{request.path_qs}", data=body, headers=headers
        ) as reply:
            answered = web.StreamResponse(status=reply.status)
            answered.content_type = reply.content_type
            await answered.prepare(request)
            with suppress(ConnectionError):
                async for chunk in reply.content.iter_any():
                    await answered.write(chunk)
                await answered.write_eof()
            return answered
