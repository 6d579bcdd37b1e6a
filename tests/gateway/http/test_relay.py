"""Two workers in one process: what arrives at the wrong one is answered through the right one, and
counts as heard when the client has heard it."""

import asyncio

from holdfast.gateway.workers.peers import (
    AVAILABLE,
    OWNS,
    RELAYED,
    STATS,
    TAKE,
    Peers,
)
from support.gateway.counter import CHAT, HELLO, exchange, request, until
from support.gateway.counter import post as raw_post
from support.gateway.external_agents import ask, converse, post
from support.gateway.worker_pairs import complete, pair
from support.rollout.stage import Oracle


def test_every_worker_gives_and_answers_every_trajectory(tmp_path):
    async def body():
        async with pair(tmp_path) as result:
            first, two = [await result.take(result.urls[0]) for _ in range(2)]
            assert {result.owner(first), result.owner(two)} == {0, 1}
            for taken in (first, two):
                messages = [
                    await converse(result.http, result.through(taken, at)) for at in range(2)
                ]
                # Words that were answered already, wherever, are asked for another answer.
                assert len({text for texts in messages for text in texts}) == 4
            reply = await exchange(result.port(1), request("GET", "/health"))
            assert reply.json == {"status": "ok", "trajectories": 2, "workers": 2}
            text = (await exchange(result.port(0), request("GET", "/metrics"))).body.decode()
            for index in range(2):
                assert f'holdfast_gateway_trajectories{{worker="{index}"}} 1' in text
            assert 'wire="relayed",status="200"' in text
            again = await result.take(
                result.urls[result.owner(first) ^ 1], task=first["task"]["id"]
            )
            assert again["attempt"] == 2
            for index in range(2):
                messages = {"role": "user", "content": "do it"}
                assert (await ask(result.http, result.through(first, index), messages))[0] == 409
            await complete(result, again, 0)
            for index in range(2):
                messages = {"role": "user", "content": "too late"}
                assert (await ask(result.http, result.through(again, index), messages))[0] == 409
            # That the one asked the other in vain is not a call, and no failure to be alarmed by.
            text = (await exchange(result.port(0), request("GET", "/metrics"))).body.decode()
            assert 'status="409"' in text
            assert 'status="503"' not in text
            await complete(result, two, 0)
        return result.local

    local = asyncio.run(body())
    assert {history.status.name for history in local.histories().values()} == {"COMPLETED"}


def test_what_workers_say_to_each_other_is_for_nobody_else(tmp_path):
    async def body():
        async with pair(tmp_path) as result:
            for path in (OWNS, AVAILABLE, TAKE, STATS, RELAYED):
                reply = await exchange(result.port(0), raw_post(path, "x"))
                assert reply.status == 404
            for taken in [await result.take(result.urls[0]) for _ in range(2)]:
                await complete(result, taken, 1)

    asyncio.run(body())


class Slow(Oracle):
    """Answers when it is let."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()

    async def sample(self, body):
        completion = await super().sample(body)
        await self.go.wait()
        return completion


def test_a_client_that_leaves_while_it_waits_elsewhere_is_given_the_same_answer(tmp_path):
    policy = Slow()

    async def body():
        async with pair(tmp_path, policy) as result:
            first, two = [await result.take(result.urls[0]) for _ in range(2)]
            wrong = result.owner(first) ^ 1
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
            raw = raw_post(CHAT, body, Authorization=f"Bearer {first['key']}")
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", result.port(wrong))
                writer.write(raw)
                await until(lambda: policy.requests)
                writer.transport.abort()
                trajectory = result.workers[result.owner(first)]._queue.of("run/a/0").trajectory
                await until(lambda: trajectory.is_idle)  # noqa: B023 - it is waited for here
                assert reader is not None
            policy.go.set()
            reply = await exchange(result.port(wrong), raw)
            assert reply.status == 200
            assert b"[DONE]" in reply.body
            assert len(policy.requests) == 1
            for taken in (first, two):
                await complete(result, taken, wrong)

    asyncio.run(body())


def test_requests_in_the_shape_that_proxies_get_are_answered_at_every_worker(tmp_path):
    async def body():
        async with pair(tmp_path) as result:
            first, two = [await result.take(result.urls[0]) for _ in range(2)]
            statuses = []
            for at in range(2):
                url = f"http://gateway.example:80/t/{first['key']}{CHAT}"
                for path in (
                    url,
                    f"{url}?api-version=1",
                    f"/t/{first['key']}/v1%2Fchat/completions",
                ):
                    reply = await exchange(result.port(at), raw_post(path, HELLO))
                    statuses.append(reply.status)
            for taken in (first, two):
                await complete(result, taken, 0)
            return statuses

    assert asyncio.run(body()) == [200] * 6


def test_a_body_that_is_asked_for_is_asked_for_once(tmp_path):
    async def body():
        async with pair(tmp_path) as result:
            first, two = [await result.take(result.urls[0]) for _ in range(2)]
            wrong = result.owner(first) ^ 1
            key = f"Bearer {first['key']}"
            raw = raw_post(CHAT, HELLO, Authorization=key, Expect="100-continue")
            # What it knows of the owner is wrong, so that it looks twice.
            result.workers[wrong]._peers._owners[first["trajectory"]] = wrong ^ 1
            relay_to, tries = Peers._relay_to, []

            async def unsure(self, index, context, body):
                tries.append(index)
                return None if len(tries) == 1 else await relay_to(self, index, context, body)

            Peers._relay_to = unsure
            try:
                reply = await exchange(result.port(wrong), raw)
            finally:
                Peers._relay_to = relay_to
            for taken in (first, two):
                await complete(result, taken, 0)
            return reply.raw

    raw = asyncio.run(body())
    assert raw.count(b"100 Continue") == 1
    assert raw.count(b"HTTP/1.1 200") == 1


def test_a_trajectory_that_nobody_heard_of_in_the_end_is_given_again(tmp_path, monkeypatch):
    """Another worker gave it, and the client left while that was on its way."""
    assigned, left, send = asyncio.Event(), asyncio.Event(), Peers.request

    async def on_its_way(self, index, path, body=None, **options):
        response = await send(self, index, path, body, **options)
        if path == TAKE and response is not None and response[0] == 200 and not assigned.is_set():
            assigned.set()
            await left.wait()
        return response

    monkeypatch.setattr(Peers, "request", on_its_way)

    async def body():
        async with pair(tmp_path) as result:
            item = await result.take(result.urls[0])
            assert result.owner(item) == 0
            leaving = asyncio.create_task(post(result.http, f"{result.urls[0]}/trajectories", {}))
            await assigned.wait()
            leaving.cancel()
            await asyncio.wait({leaving})
            left.set()
            status, two = await post(result.http, f"{result.urls[0]}/trajectories", {"wait": 5})
            if status != 200:
                _, two = await post(
                    result.http, f"{result.urls[1]}/trajectories", {"task": "b", "sample": 0}
                )
            for taken in (item, two):
                await complete(result, taken, 0)
            return status

    assert asyncio.run(body()) == 200
