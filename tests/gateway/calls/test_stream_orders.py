"""A stream that was cut, and is asked for with its tools in another order: the same call, sampled
to its end once, and told whole."""

import asyncio

import pytest

from holdfast.testing import FakeEngine
from support.gateway.calls import SHOWN, AsSent, turned
from support.gateway.connections import Connection, text_of
from support.gateway.counter import CHAT, exchange, post
from support.gateway.streams import TEXT, held, streaming, unchunked


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(replies=(TEXT,)) as engine:
        yield engine


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("as_sent", [True, False], ids=["in the tokens", "not in the tokens"])
async def test_a_reply_that_was_cut_is_told_whole_to_whoever_asks_in_another_order(
    engine, stream, as_sent
):
    request = {"model": "m", **SHOWN[CHAT], "stream": True}
    async with streaming(engine, held(50)) as (counter, trajectory, binding):
        if as_sent:
            voice = trajectory.session.speaker
            counter.subject.renderer = AsSent()
            trajectory.session.speaker = type(voice)(voice.policy, AsSent())
        async with Connection(counter.port, post(CHAT, request, binding)) as connection:
            await connection.wait_for()
        counter.gateway.release(binding)
        await trajectory.aclose()
        await asyncio.to_thread(engine.set_faults)
        request = {**turned(request), "stream": stream}
        async with counter.attempt() as (again, fresh):
            reply = await exchange(counter.port, post(CHAT, request, fresh))
            assert reply.status == 200
            text = again.session.history.steps["0.0.0"].message.text
        async with counter.attempt() as (_, fresh):
            once_more = await exchange(counter.port, post(CHAT, request, fresh))
        if not stream:
            assert reply.json["choices"][0]["message"]["content"] == text
            assert once_more.body == reply.body
        assert text.startswith("Once upon a time")
        history = await counter.subject.history()
        assert len(history.calls) == len(history.generations) == 1
        assert not history.drafts
        if stream:
            assert text_of(unchunked(reply.body)) == text
