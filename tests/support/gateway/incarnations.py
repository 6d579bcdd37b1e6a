"""A gateway that ends and begins again while its agents go on."""

import asyncio

import aiohttp

from holdfast.gateway.agents.external import ExternalRolloutProcessor
from support.engine.local_run import LocalRun
from support.gateway.external_agents import ask, post

SECRET = b"s" * 32


class Life:
    """One process after another that works on a local run, each at an address of its own."""

    def __init__(self, local: LocalRun, http, **options):
        self.local, self.http, self.options = local, http, options
        self.url = ""

    async def __aenter__(self):
        self.processor = ExternalRolloutProcessor(**self.options)
        engine = await self.local.engine(self.processor)
        run = await self.local.journal.find_run("run")
        self.processor.attach(self.local.journal, run, secret=SECRET)
        self.work = asyncio.create_task(engine.work())
        while not self.processor.url:
            await asyncio.sleep(0.01)
        self.url = self.processor.url
        return self

    async def __aexit__(self, *error):
        if not self.work.done() and error[0] is None:
            self.local.stop.request("the process ends")
        await asyncio.wait_for(self.work, 120)

    async def take(self, **wanted):
        status, taken = await post(self.http, f"{self.url}/trajectories", {"wait": 10, **wanted})
        assert status == 200, taken
        return taken

    def moved(self, taken: dict) -> dict:
        """As its agent sees it when the address is the same as before."""
        bound = f"{self.url}/t/{taken['key']}"
        return taken | {"openai_base_url": f"{self.url}/v1", "bound_url": bound}

    async def status(self, taken: dict, message: str = "do a") -> int:
        return (await ask(self.http, self.moved(taken), {"role": "user", "content": message}))[0]

    async def complete(self, taken: dict, reward: float = 1.0):
        url = self.moved(taken)["bound_url"]
        return await post(self.http, f"{url}/complete", {"reward": reward})


def perform(body):
    async def with_http():
        async with aiohttp.ClientSession() as http:
            return await body(http)

    return asyncio.run(with_http())
