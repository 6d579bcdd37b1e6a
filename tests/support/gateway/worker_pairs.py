"""Two workers of one gateway in one process."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp

from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.gateway.workers.peers import WorkerPlace
from support.engine.yard import Yard
from support.gateway.external_agents import post

SECRET = b"s" * 32


class Pair:
    def __init__(self, yard: Yard, folder, http):
        self.yard, self.http = yard, http
        self.workers = [
            ExternalRolloutProcessor(place=WorkerPlace(str(folder), index, 2)) for index in range(2)
        ]

    @property
    def urls(self) -> list[str]:
        return [worker.url for worker in self.workers]

    async def take(self, url: str, **wanted) -> dict:
        status, taken = await post(self.http, f"{url}/trajectories", {"wait": 10, **wanted})
        assert status == 200, taken
        return taken

    def owner(self, taken: dict) -> int:
        owns = [one._queue.of(taken["trajectory"]) is not None for one in self.workers]
        assert sum(owns) == 1
        return owns.index(True)

    def through(self, taken: dict, index: int) -> dict:
        """As if the address had led to this worker."""
        url = self.urls[index]
        bound = f"{url}/t/{taken['key']}"
        return taken | {"openai_base_url": f"{url}/v1", "bound_url": bound}

    def port(self, index: int) -> int:
        return int(self.urls[index].rpartition(":")[2])


@asynccontextmanager
async def pair(folder, policy=None):
    """Two trajectories, one at each worker."""
    yard = Yard("a", "b", policy=policy)
    async with aiohttp.ClientSession() as http:
        found, works = Pair(yard, folder, http), []
        for worker in found.workers:
            engine = await yard.engine(worker, join=True, concurrency=1, lease_seconds=3.0)
            run = await yard.journal.find_run("run")
            worker.attach(yard.journal, run, secret=SECRET)
            works.append(asyncio.create_task(engine.work()))
        while not all(found.urls):
            await asyncio.sleep(0.01)
        try:
            yield found
        finally:
            await asyncio.wait_for(asyncio.gather(*works), 120)


async def complete(found: Pair, taken: dict, index: int) -> None:
    url = found.through(taken, index)["bound_url"]
    assert (await post(found.http, f"{url}/complete", {"reward": 1}))[0] == 200
