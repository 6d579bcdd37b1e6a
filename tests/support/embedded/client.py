"""Asking an engine, in process and over HTTP."""

import asyncio
import queue
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from holdfast.embedded.http.server import Server
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.embedded.scheduler.generation import Generation, TokenDelta, TokenSampling

SECONDS = 60
NAME = "tiny"
TOKEN = "the-token-of-the-server"


class AwaitedGeneration(Generation):
    """A generation that can be waited for; `deltas` are all that came."""

    def __init__(self, prompt: Sequence[int], sampling: TokenSampling, **options: Any):
        self._post: queue.Queue[TokenDelta] = queue.Queue()
        self.deltas: list[TokenDelta] = []
        super().__init__(prompt, sampling, sink=lambda _, delta: self._post.put(delta), **options)

    def next(self) -> TokenDelta:
        self.deltas.append(self._post.get(timeout=SECONDS))
        return self.deltas[-1]

    def wait(self) -> "AwaitedGeneration":
        while not (self.deltas and self.deltas[-1].finish_reason):
            self.next()
        return self

    @property
    def result(self) -> list[tuple[int, float]]:
        """Tokens with their logprobs: what has to be the same to the last bit."""
        return [(item.token, item.logprob) for item in self.wait().drawn]


def sampling(**changes: Any) -> TokenSampling:
    return TokenSampling(
        **{"max_tokens": 24, "seed": 7, "ignore_eos": True, "logprobs": 0, **changes}
    )


def ask(engine: DecodeEngine, prompt: Sequence[int], **changes: Any) -> AwaitedGeneration:
    request = AwaitedGeneration(prompt, sampling(**changes))
    engine.submit(request)
    return request


@asynccontextmanager
async def serving(engine: DecodeEngine, *, api_key: str | None = None) -> AsyncIterator["Client"]:
    """The engine behind a real socket, and a client for it."""
    app = Server(engine, served=NAME, api_key=api_key, token=TOKEN).application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        url = f"http://{host}:{port}"
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as session:
            yield Client(session)
    finally:
        await runner.cleanup()


class Client:
    """JSON in, JSON out; the status with it."""

    def __init__(self, session: aiohttp.ClientSession):
        self.session = session

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session.post(path, data=raw, headers=headers) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(path) as response:
            return response.status, await response.text()

    async def ok(self, path: str, body: Any = None, **headers: str) -> Any:
        status, answer = await self.post(path, body, **headers)
        assert status == 200, answer
        return answer

    async def complete(self, **body: Any) -> Any:
        return await self.ok("/v1/completions", completion(**body))

    async def chat(self, **body: Any) -> Any:
        return await self.ok("/v1/chat/completions", {"model": NAME, **body})

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Every event; the last is the string [DONE]."""
        raw = msgspec.json.encode({**body, "stream": True})
        async with self.session.post(path, data=raw) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            text = (await response.read()).decode()
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        return [event if event == "[DONE]" else msgspec.json.decode(event) for event in events]


def completion(**body: Any) -> dict[str, Any]:
    base = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 8, "seed": 7, "logprobs": 0,
            "return_token_ids": True}  # fmt: skip
    return {key: value for key, value in {**base, **body}.items() if value is not ...}


async def until(condition: Any) -> None:
    """Waits for something that happens in another thread."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.002)
