"""Agents that take trajectories from the gateway over HTTP, as another program would."""

import asyncio

import aiohttp

from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.server_tokens import known_token
from support.engine.local_run import LocalRun


async def post(http, url: str, body=None, **headers):
    """With the gateway's token, as its file says it, where no other key is given."""
    if "Authorization" not in headers and (token := known_token(url)) is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with http.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def ask(http, taken: dict, *messages: dict):
    body = {"model": "m", "messages": list(messages)}
    key = f"Bearer {taken['key']}"
    url = f"{taken['openai_base_url']}/chat/completions"
    return await post(http, url, body, Authorization=key)


async def converse(http, taken: dict, turns: int = 2) -> list[str]:
    texts, messages = [], list(taken["task"]["messages"])
    for turn in range(turns):
        status, answer = await ask(http, taken, *messages)
        assert status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        texts.append(text)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"{turn}"}]
    return texts


def with_agents(local: LocalRun, agents, *, max_retry: int = 3, **options):
    """Runs it while `agents(http, url)` does what agents do."""
    processor = ExternalRolloutProcessor(**options)

    async def body():
        work = asyncio.create_task(local.work(processor, max_retry=max_retry))
        while not processor.url:
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as http:
            numbers = await agents(http, processor.url)
        await asyncio.wait_for(work, 120)
        return numbers

    return asyncio.run(body())
