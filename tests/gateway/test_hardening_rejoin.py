"""Agents that outlive the gateway and have several calls in flight: all of them go on."""

import asyncio

from test_external import ask, converse
from test_rejoin import Life, perform
from yard import Yard

from holdfast.gateway.assignment.queue import Offers


def test_calls_at_once_of_an_agent_that_outlived_the_gateway_are_all_answered(monkeypatch):
    """They come before the trajectory is open again, and only one of them can be the first."""
    yard = Yard()
    opening = asyncio.Event()
    put = Offers.put

    async def late(self, offer):
        await opening.wait()
        await put(self, offer)

    async def body(http):
        async with Life(yard, http) as first:
            taken = await first.take()
            await converse(http, taken, 1)
        monkeypatch.setattr(Offers, "put", late)
        async with Life(yard, http) as second:
            moved = second.moved(taken)
            asked = [
                asyncio.create_task(ask(http, moved, {"role": "user", "content": f"part {n}"}))
                for n in range(3)
            ]
            await asyncio.sleep(0.3)
            opening.set()
            statuses = [status for status, _ in await asyncio.gather(*asked)]
            await second.complete(taken)
            return statuses

    assert perform(body) == [200, 200, 200]
    assert len(yard.history().attempts) == 1
    assert len(yard.history().generations) == 4
