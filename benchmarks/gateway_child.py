"""One side of the gateway benchmarks: a gateway with its journal, or a bare capture proxy.

Prints its address and serves. For each line of its standard input it prints the CPU seconds that
it used since its start and the memory that it holds; it ends with its standard input.
"""

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

import holdfast
import holdfast.engine.running.run
from holdfast.gateway.agents.external import ExternalRolloutProcessor

MOST_AT_ONCE = 1_024


async def proxy(url: str, folder: str, *, tokens: bool) -> None:
    """Relays, parses both ways, and writes what it saw: many calls to one fsync.

    `tokens`: asks the engine for ids and logprobs, keeps them, and tells the agent what it asked
    for. Without, it sees text alone, of which nothing can be trained.
    """
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

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def relay(request: web.Request) -> web.Response:
            body = await request.read()
            asked = msgspec.json.decode(body)
            if tokens:
                body = msgspec.json.encode({**asked, "return_token_ids": True, "logprobs": True})
            async with session.post(f"{url}/v1/chat/completions", data=body) as answer:
                told = await answer.read()
            said = msgspec.json.decode(told)
            seen = msgspec.json.encode([asked, said])
            if tokens:
                told = msgspec.json.encode(_without_tokens(said))
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
        await _serve()
        keeping.cancel()
        await runner.cleanup()


def _without_tokens(said: dict[str, Any]) -> dict[str, Any]:
    choices = [{**one, "token_ids": None, "logprobs": None} for one in said["choices"]]
    return {**said, "choices": choices, "prompt_token_ids": None}


async def gateway(url: str, folder: str, trajectories: int) -> None:
    class Telling(ExternalRolloutProcessor):
        async def setup(self) -> None:
            await super().setup()
            print(self.url, flush=True)

    journal = holdfast.open_journal(Path(folder) / "journal.db")
    at_once = min(trajectories, MOST_AT_ONCE)
    policy = holdfast.EnginePolicy(url, "fake", connections=2 * at_once)
    try:
        run = holdfast.run(
            Telling(),
            tasks=[{"id": str(number), "messages": []} for number in range(trajectories)],
            policy=policy, journal=journal, name="bench", seed=1,
            settings=holdfast.Settings(concurrency=at_once),
        )  # fmt: skip
        work = asyncio.create_task(run)
        await _serve()
        work.cancel()
        await asyncio.wait({work})
    finally:
        await policy.aclose()
        await journal.close()


async def _serve() -> None:
    loop, looking = asyncio.get_running_loop(), 0.0
    while await loop.run_in_executor(None, sys.stdin.readline):
        cpu = time.process_time() - looking
        gc.collect()  # So that memory is what is used. It is our work, not the gateway's.
        looking = time.process_time() - cpu
        print(json.dumps({"cpu": cpu, "memory": _resident()}), flush=True)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    mode, url, folder, trajectories = sys.argv[1:]
    if mode == "gateway":
        asyncio.run(gateway(url, folder, int(trajectories)))
    else:
        asyncio.run(proxy(url, folder, tokens=mode == "proxy"))


main()
