"""One side of the gateway benchmark: a gateway with its journal, or a bare capture proxy.

Prints its address, serves until its standard input ends, and prints the CPU seconds that it used
since the first call.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

import holdfast
import holdfast.engine.run
from holdfast.gateway.external import ExternalRolloutProcessor

CPU: list[float] = []


async def proxy(url: str, folder: str) -> None:
    """Relays, parses both ways, and writes what it saw: many calls to one fsync."""
    waiting: list[tuple[bytes, asyncio.Future[None]]] = []
    wake = asyncio.Event()
    file = (Path(folder) / "captured").open("ab", buffering=0)

    async def keep() -> None:
        loop = asyncio.get_running_loop()
        while True:
            await wake.wait()
            wake.clear()
            batch, waiting[:] = list(waiting), []
            file.write(b"".join(body for body, _ in batch))
            await loop.run_in_executor(None, os.fdatasync, file.fileno())
            for _, done in batch:
                done.set_result(None)

    async with aiohttp.ClientSession() as session:

        async def relay(request: web.Request) -> web.Response:
            _begin()
            body = await request.read()
            asked = msgspec.json.decode(body)
            async with session.post(f"{url}/v1/chat/completions", data=body) as answer:
                told = await answer.read()
            seen = msgspec.json.encode([asked, msgspec.json.decode(told)])
            done = asyncio.get_running_loop().create_future()
            waiting.append((seen, done))
            wake.set()
            await done
            return web.Response(body=told, content_type="application/json")

        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", relay)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        keeping = asyncio.create_task(keep())
        print(f"http://127.0.0.1:{port}", flush=True)
        await _until_told()
        keeping.cancel()
        await runner.cleanup()


async def gateway(url: str, folder: str, trajectories: int) -> None:
    class Telling(ExternalRolloutProcessor):
        async def setup(self) -> None:
            await super().setup()
            print(self.url, flush=True)

        async def rollout(self, t: holdfast.Rollout) -> object:  # type: ignore[override]
            _begin()
            return await super().rollout(t)

    journal = holdfast.open_journal(Path(folder) / "journal.db")
    policy = holdfast.EnginePolicy(url, "fake", connections=64)
    try:
        run = holdfast.run(
            Telling(),
            tasks=[{"id": str(number), "messages": []} for number in range(trajectories)],
            policy=policy, journal=journal, name="bench", seed=1,
            settings=holdfast.Settings(concurrency=trajectories),
        )  # fmt: skip
        work = asyncio.create_task(run)
        await _until_told()
        work.cancel()
        await asyncio.wait({work})
    finally:
        await policy.aclose()
        await journal.close()


def _begin() -> None:
    if not CPU:
        CPU.append(time.process_time())


async def _until_told() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    CPU.append(time.process_time())


def main() -> None:
    mode, url, folder, trajectories = sys.argv[1:]
    work = proxy(url, folder) if mode == "proxy" else gateway(url, folder, int(trajectories))
    asyncio.run(work)
    print(json.dumps({"cpu": CPU[1] - CPU[0]}), flush=True)


main()
