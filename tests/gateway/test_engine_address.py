"""Where the engine is, and what it is reached with, is told to no agent."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.retry import RetryPolicy
from support.engine.local_run import LocalRun

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FORMAT = {"response_format": {"type": "json_object"}}
ONCE = RetryPolicy(tries=1, deadline=30, base=0.01, cap=0.01)


async def parrot(status: int) -> tuple[web.AppRunner, str]:
    """An engine that refuses everything, and says who was asked by whom."""

    async def refuse(request: web.Request) -> web.Response:
        text = f"{request.url} was asked with {dict(request.headers)}"
        return web.json_response({"error": {"message": text}}, status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"127.0.0.1:{runner.addresses[0][1]}"


@pytest.mark.parametrize("more", [{}, FORMAT], ids=["plain", "JSON"])
@pytest.mark.parametrize(("status", "message"), [(400, 400), (422, 400), (500, 503), (429, 503)])
def test_an_agent_is_told_neither_address_nor_credentials_of_the_engine(status, message, more):
    calls: list[asyncio.Task[tuple[int, str]]] = []

    async def call(url: str) -> tuple[int, str]:
        request, url = {**BODY, **more}, f"{url}/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=request) as answer:
            return answer.status, await answer.text()

    async def agent(binding, task):
        # In a task of its own: the attempt may be over before the agent has heard why.
        calls.append(asyncio.create_task(call(binding.bound_url)))
        await asyncio.wait(calls)
        return 1.0

    async def run() -> tuple[str, int, str]:
        runner, address = await parrot(status)
        policy = EnginePolicy(f"http://me:hunter22@{address}", "m", retry=ONCE, patience=0)
        try:
            local = LocalRun(policy=policy)
            await local.work(BlackBoxRolloutProcessor(agent), max_retry=0)
            code, text = await calls[0]
        finally:
            await policy.aclose()
            await runner.cleanup()
        return address, code, text

    address, code, text = asyncio.run(run())
    assert code == message, text
    assert json.loads(text)["error"]["message"]
    for secret in (address, "hunter22", "bWU6aHVudGVyMjI"):
        assert secret not in text
