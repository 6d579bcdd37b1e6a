"""Two workers in one process: what arrives at the wrong one is answered through the right one, and
counts as heard when the client has heard it."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
from counter import CHAT, exchange, request, until
from counter import post as raw_post
from stage import Oracle
from test_external import ask, converse, post
from yard import Yard

from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.gateway.http.relay import KEPT_TICKETS, Tickets
from holdfast.gateway.workers.peers import WorkerPlace

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
        owns = [one._offers.of(taken["trajectory"]) is not None for one in self.workers]
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


def test_every_worker_gives_and_answers_every_trajectory(tmp_path):
    async def body():
        async with pair(tmp_path) as found:
            one, two = [await found.take(found.urls[0]) for _ in range(2)]
            assert {found.owner(one), found.owner(two)} == {0, 1}
            for taken in (one, two):
                said = [await converse(found.http, found.through(taken, at)) for at in range(2)]
                # Words that were answered already, wherever, are asked for another answer.
                assert len({text for texts in said for text in texts}) == 4
            reply = await exchange(found.port(1), request("GET", "/health"))
            assert reply.json == {"status": "ok", "trajectories": 2, "workers": 2}
            text = (await exchange(found.port(0), request("GET", "/metrics"))).body.decode()
            for index in range(2):
                assert f'holdfast_gateway_trajectories{{worker="{index}"}} 1' in text
            assert 'wire="relayed",status="200"' in text
            again = await found.take(found.urls[found.owner(one) ^ 1], task=one["task"]["id"])
            assert again["attempt"] == 2
            for index in range(2):
                said = {"role": "user", "content": "do it"}
                assert (await ask(found.http, found.through(one, index), said))[0] == 409
            await complete(found, again, 0)
            for index in range(2):
                said = {"role": "user", "content": "too late"}
                assert (await ask(found.http, found.through(again, index), said))[0] == 409
            # That the one asked the other in vain is no call, and no failure to be alarmed by.
            text = (await exchange(found.port(0), request("GET", "/metrics"))).body.decode()
            assert 'status="409"' in text
            assert 'status="503"' not in text
            await complete(found, two, 0)
        return found.yard

    yard = asyncio.run(body())
    assert {history.status.name for history in yard.histories().values()} == {"COMPLETED"}


def test_what_workers_say_to_each_other_is_for_nobody_else(tmp_path):
    async def body():
        async with pair(tmp_path) as found:
            for path in ("/-/owns", "/-/take", "/-/give-back", "/-/stats", "/-/unheard"):
                reply = await exchange(found.port(0), raw_post(path, "x"))
                assert reply.status == 404
            for taken in [await found.take(found.urls[0]) for _ in range(2)]:
                await complete(found, taken, 1)

    asyncio.run(body())


class Slow(Oracle):
    """Answers when it is let."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()

    async def sample(self, asked):
        found = await super().sample(asked)
        await self.go.wait()
        return found


def test_a_client_that_leaves_while_it_waits_elsewhere_is_given_the_same_answer(tmp_path):
    policy = Slow()

    async def body():
        async with pair(tmp_path, policy) as found:
            one, two = [await found.take(found.urls[0]) for _ in range(2)]
            wrong = found.owner(one) ^ 1
            asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
            raw = raw_post(CHAT, asked, Authorization=f"Bearer {one['key']}")
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", found.port(wrong))
                writer.write(raw)
                await until(lambda: policy.requests)
                writer.transport.abort()
                trajectory = found.workers[found.owner(one)]._offers.of("run/a/0").trajectory
                await until(lambda: trajectory.is_idle)  # noqa: B023 - it is waited for here
                assert reader is not None
            policy.go.set()
            reply = await exchange(found.port(wrong), raw)
            assert reply.status == 200
            assert b"[DONE]" in reply.body
            assert len(policy.requests) == 1
            for taken in (one, two):
                await complete(found, taken, wrong)

    asyncio.run(body())


class Heard:
    def __init__(self):
        self.missed = 0

    def miss(self):
        self.missed += 1


def test_an_answer_that_did_not_arrive_is_unheard_whichever_is_told_first():
    tickets, late, early = Tickets(), Heard(), Heard()
    tickets.put("one", late)
    tickets.missed("one")
    tickets.missed("two")
    tickets.put("two", early)
    assert (late.missed, early.missed) == (1, 1)
    for number in range(2 * KEPT_TICKETS):
        tickets.put(f"{number}", Heard())
    assert len(tickets._told) == KEPT_TICKETS
