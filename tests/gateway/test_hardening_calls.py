"""Calls side by side, and calls that fail: what was told stays told, and is not sampled again."""

import asyncio

import pytest
from counter import CHAT, Counter, exchange, opened, post, until
from live_stage import StreamPlay
from stage import completion, text_of
from test_live_streams_kept import Connection

from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.policy.policy import Draft
from holdfast.records.errors import BadRequest
from holdfast.records.step import VersionSpan
from holdfast.records.tokens import pack_ids, pack_logprobs, unpack_ids

BEGINNING, REST = "Once upon a time", " there was an end."


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def said(text: str) -> dict:
    return {"role": "assistant", "content": text}


def asked(*messages: dict, **more) -> dict:
    return {"model": "m", "messages": list(messages), **more}


class Storyteller:
    """A policy that thinks "one", then "two", and says yes, the second time when it is hurried. Its
    story stops after the beginning; asked for again, it goes on with what is known of it."""

    model, seconds_down = "oracle", 0.0

    def __init__(self) -> None:
        self.hurry, self.is_waiting = asyncio.Event(), False
        self.begun_with: list[str] = []
        self.answers = iter(("<think>\none\n</think>\n\nyes", "<think>\ntwo\n</think>\n\nyes"))

    async def sample(self, request):
        if "a story" not in text_of(request.prompt):
            answer = next(self.answers)
            if "two" in answer:
                self.is_waiting = True
                await self.hurry.wait()
            return completion(answer)
        known = bytes(unpack_ids(request.draft.ids).tolist()).decode()
        self.begun_with.append(known)
        if known or len(self.begun_with) > 1:
            return completion((known or "something else") + REST)
        ids = list(BEGINNING.encode())
        spans = (VersionSpan("v1", 0, len(ids)),)
        await request.partial.save(Draft(0, pack_ids(ids), pack_logprobs([-0.5] * len(ids)), spans))
        return await asyncio.Event().wait()


REWRITTEN = (user("q"), said("no, I did not"), user("a story"))
CONTINUED = (user("q"), said("yes"), user("a story"))


@pytest.mark.parametrize(
    ("other", "story"),
    [
        ((user("q"),), CONTINUED),
        ((user("q"), said("yes"), user("and?")), REWRITTEN),
        ((user("p"),), (user("p"), said("hm"), user("a story"))),
    ],
    ids=["an equal answer", "a conversation that is rewritten", "the first of its beginning"],
)
def test_what_was_told_is_kept_although_another_call_was_recorded_meanwhile(other, story):
    async def body():
        teller = Storyteller()
        async with Gateway(WIRES, limits=GatewayLimits(stream_tokens=4)) as gateway:
            counter = Counter(gateway, StreamPlay(teller))
            async with counter.attempt() as (trajectory, binding):
                first = await exchange(counter.port, post(CHAT, asked(user("q")), binding))
                assert first.json["choices"][0]["message"]["content"] == "yes"
                raw = post(CHAT, asked(*other), binding)
                beside = asyncio.create_task(exchange(counter.port, raw))
                await until(lambda: teller.is_waiting)
                raw = post(CHAT, asked(*story, stream=True), binding)
                async with Connection(counter.port, raw) as connection:
                    await connection.said("Once upon")
                    teller.hurry.set()
                    assert (await beside).status == 200
                    gateway.release(binding)
                    await trajectory.aclose()
            async with counter.attempt() as (_, binding):
                reply = await exchange(counter.port, post(CHAT, asked(*story), binding))
            return teller.begun_with, reply.json["choices"][0]["message"]["content"]

    begun_with, told = asyncio.run(body())
    assert begun_with == ["", BEGINNING]
    assert told == BEGINNING + REST


def test_a_stream_that_ended_with_an_error_is_the_same_call_when_it_is_asked_again():
    """As it is without a stream; a second one would be sampled, and recorded as a second."""

    async def body():
        begun = asyncio.Event()

        async def slow(request):
            await begun.wait()
            return "no JSON at all"

        async with opened(slow, limits=GatewayLimits(ping_seconds=0.02)) as (counter, _, binding):
            wanted = asked(user("q"), stream=True, response_format={"type": "json_object"})
            first = await exchange(counter.port, post(CHAT, wanted, binding), begun=begun.set)
            assert first.status == 200
            assert b"response_format" in first.body
            second = await exchange(counter.port, post(CHAT, wanted, binding))
            assert (second.status, second.json["error"]["param"]) == (400, "response_format")
            assert len(counter.play.oracle.requests) == 1

    asyncio.run(body())


def test_when_one_of_several_choices_fails_the_others_are_sampled_no_further():
    ended = asyncio.Event()

    async def answer(request):
        if request.id.endswith(".0.0"):
            raise BadRequest("no such schema")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def body():
        async with opened(answer) as (counter, _, binding):
            wanted = asked(user("q"), n=3, response_format={"type": "json_object"})
            reply = await exchange(counter.port, post(CHAT, wanted, binding))
            assert reply.status == 400
            assert len(counter.play.oracle.requests) == 3
            await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(body())
