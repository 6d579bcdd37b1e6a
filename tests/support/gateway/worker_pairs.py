"""Two workers of one gateway in one process."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp

from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.gateway.workers.peers import WorkerPlace
from support.engine.local_run import LocalRun
from support.gateway.external_agents import post

SECRET = b"s" * 32


class Pair:
    def __init__(self, local: LocalRun, folder, http):
        self.local, self.http = local, http
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
        owns = [worker._queue.of(taken["trajectory"]) is not None for worker in self.workers]
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
    local = LocalRun("a", "b", policy=policy)
    async with aiohttp.ClientSession() as http:
        result, works = Pair(local, folder, http), []
        for worker in result.workers:
            engine = await local.engine(worker, join=True, concurrency=1, lease_seconds=3.0)
            run = await local.journal.find_run("run")
            worker.attach(local.journal, run, secret=SECRET)
            works.append(asyncio.create_task(engine.work()))
        while not all(result.urls):
            await asyncio.sleep(0.01)
        try:
            yield result
        finally:
            await asyncio.wait_for(asyncio.gather(*works), 120)


async def complete(result: Pair, taken: dict, index: int) -> None:
    url = result.through(taken, index)["bound_url"]
    assert (await post(result.http, f"{url}/complete", {"reward": 1}))[0] == 200
