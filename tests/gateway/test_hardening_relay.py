"""What arrives at the wrong worker in an unusual shape, or whose client goes away too early."""

import asyncio

from counter import CHAT, HELLO, exchange
from counter import post as raw_post
from test_external import post
from test_relay import complete, pair

from holdfast.gateway.workers.peers import TAKE, Peers


def test_requests_in_the_shape_that_proxies_get_are_answered_at_every_worker(tmp_path):
    async def body():
        async with pair(tmp_path) as found:
            one, two = [await found.take(found.urls[0]) for _ in range(2)]
            statuses = []
            for at in range(2):
                url = f"http://gateway.example:80/t/{one['key']}{CHAT}"
                for path in (url, f"{url}?api-version=1", f"/t/{one['key']}/v1%2Fchat/completions"):
                    reply = await exchange(found.port(at), raw_post(path, HELLO))
                    statuses.append(reply.status)
            for taken in (one, two):
                await complete(found, taken, 0)
            return statuses

    assert asyncio.run(body()) == [200] * 6


def test_a_body_that_is_asked_for_is_asked_for_once(tmp_path):
    async def body():
        async with pair(tmp_path) as found:
            one, two = [await found.take(found.urls[0]) for _ in range(2)]
            wrong = found.owner(one) ^ 1
            key = f"Bearer {one['key']}"
            raw = raw_post(CHAT, HELLO, Authorization=key, Expect="100-continue")
            # What it knows of the owner is wrong, so that it looks twice.
            found.workers[wrong]._peers._owners[one["trajectory"]] = wrong ^ 1
            told_by, tries = Peers._told_by, []

            async def unsure(self, index, visit, body):
                tries.append(index)
                return None if len(tries) == 1 else await told_by(self, index, visit, body)

            Peers._told_by = unsure
            try:
                reply = await exchange(found.port(wrong), raw)
            finally:
                Peers._told_by = told_by
            for taken in (one, two):
                await complete(found, taken, 0)
            return reply.raw

    raw = asyncio.run(body())
    assert raw.count(b"100 Continue") == 1
    assert raw.count(b"HTTP/1.1 200") == 1


def test_a_trajectory_that_nobody_heard_of_in_the_end_is_given_again(tmp_path, monkeypatch):
    """Another worker gave it, and the client left while that was on its way."""
    told, ask = asyncio.Event(), Peers.ask

    async def on_its_way(self, index, path, body=None):
        answer = await ask(self, index, path, body)
        if path == TAKE and answer is not None and answer[0] == 200 and not told.is_set():
            told.set()
            await asyncio.sleep(0.3)
        return answer

    monkeypatch.setattr(Peers, "ask", on_its_way)

    async def body():
        async with pair(tmp_path) as found:
            one = await found.take(found.urls[0])
            assert found.owner(one) == 0
            leaving = asyncio.create_task(post(found.http, f"{found.urls[0]}/trajectories", {}))
            await told.wait()
            leaving.cancel()
            await asyncio.wait({leaving})
            status, two = await post(found.http, f"{found.urls[0]}/trajectories", {"wait": 5})
            if status != 200:
                _, two = await post(
                    found.http, f"{found.urls[1]}/trajectories", {"task": "b", "sample": 0}
                )
            for taken in (one, two):
                await complete(found, taken, 0)
            return status

    assert asyncio.run(body()) == 200
