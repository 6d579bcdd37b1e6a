"""What a stream has told is kept: whoever goes away, asks again, or is started anew hears the same
beginning, and nothing that was told is sampled twice."""

import asyncio

import pytest

from holdfast.gateway.calls.call import drafted_calls
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.policy import Draft
from holdfast.records.encoding.tokens import count, pack_ids, pack_logprobs
from holdfast.records.step import Called, Drafted, VersionSpan
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.connections import Connection, text_of
from support.gateway.counter import Counter, exchange, post, until
from support.gateway.streams import (
    ADDING,
    TEXT,
    completions,
    held,
    release,
    streaming,
    unchunked,
    until_held,
)
from support.rollout.stage import TrajectoryUnderTest, completion

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(replies=(f"{TEXT} {ADDING}",)) as engine:
        yield engine


def streamed_request(text: str = "hello", **more) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, **more}


async def answer_of(counter: Counter, body: dict) -> dict:
    """As the next attempt is told it."""
    async with counter.attempt() as (_, binding):
        raw = post(CHAT, {**body, "stream": False}, binding)
        return (await exchange(counter.port, raw)).json["choices"][0]["message"]


async def test_nothing_is_told_before_it_is_durable(engine):
    class Slow(MemoryJournal):
        gate = asyncio.Event()
        blocked = False

        async def append(self, lease, records, **options):
            if any(isinstance(record, Drafted) for record in records):
                self.blocked = True
                await self.gate.wait()
            await super().append(lease, records, **options)

    journal = Slow()
    async with streaming(engine, held(), journal=journal, ping_seconds=0.02) as stage:
        counter, _, binding = stage
        async with Connection(counter.port, post(CHAT, streamed_request(), binding)) as connection:
            await connection.kept_alive()
            await until(lambda: journal.blocked)
            await connection.kept_alive(5)
            assert b"data:" not in connection.events
            journal.gate.set()
            await connection.wait_for()
            assert await completions(engine) == 0
            await release(engine)
            assert (await connection.rest()).endswith(b"data: [DONE]\n\n")


async def test_the_terminal_event_comes_after_the_call_is_recorded(engine):
    class Watched(MemoryJournal):
        gate = asyncio.Event()
        blocked = False

        async def append(self, lease, records, **options):
            if any(isinstance(record, Called) for record in records):
                self.blocked = True
                await self.gate.wait()
            await super().append(lease, records, **options)

    journal = Watched()
    async with streaming(engine, held(), journal=journal, ping_seconds=0.02) as stage:
        counter, _, binding = stage
        async with Connection(counter.port, post(CHAT, streamed_request(), binding)) as connection:
            await connection.wait_for()
            await release(engine)
            await until(lambda: journal.blocked)
            assert await completions(engine) == 1
            await connection.kept_alive(connection.body.count(b": keep-alive") + 2)
            assert b'finish_reason":"' not in connection.events
            journal.gate.set()
            assert b'finish_reason":"stop"' in await connection.rest()


async def test_a_client_that_goes_away_does_not_stop_the_sampling(engine):
    async with streaming(engine, held()) as (counter, trajectory, binding):
        async with Connection(counter.port, post(CHAT, streamed_request(), binding)) as connection:
            await connection.wait_for()
        await until(lambda: trajectory.is_idle)
        await release(engine)
        # It asks again, and is the same call.
        reply = await exchange(counter.port, post(CHAT, streamed_request(), binding))
        assert text_of(unchunked(reply.body)).startswith(connection.text)
        assert b"add" in unchunked(reply.body)
        assert len(engine.requests()) == 1
        history = await counter.subject.history()
        assert len(history.calls) == len(history.generations) == 1


async def test_a_retry_joins_the_call_and_hears_it_from_the_beginning(engine):
    async with streaming(engine, held()) as (counter, _, binding):
        raw = post(CHAT, streamed_request(), binding)
        again = post(CHAT, streamed_request(), binding, x_stainless_retry_count="1")
        async with (
            Connection(counter.port, raw) as first,
            Connection(counter.port, again) as second,
        ):
            await first.wait_for()
            await second.wait_for()
            assert await completions(engine) == 0
            assert second.text.startswith(first.text) or first.text.startswith(second.text)
            async with asyncio.timeout(60):
                whole = asyncio.create_task(
                    exchange(counter.port, post(CHAT, streamed_request(stream=False), binding,
                                                x_stainless_retry_count="1"))
                )  # fmt: skip
                await release(engine)
                single, two = await first.rest(), await second.rest()
            assert text_of(single) == text_of(two)
            assert single.endswith(b"data: [DONE]\n\n")
            assert two.endswith(b"data: [DONE]\n\n")
            message = (await whole).json["choices"][0]["message"]
            assert message["content"] == text_of(single)
        assert len(engine.requests()) == 1


async def test_a_new_attempt_hears_the_same_beginning_and_the_rest_is_sampled(engine):
    async with streaming(engine, held()) as (counter, trajectory, binding):
        async with Connection(counter.port, post(CHAT, streamed_request(), binding)) as connection:
            await connection.wait_for()
            text = connection.text
            counter.gateway.release(binding)
            await trajectory.aclose()
        history = await counter.subject.history()
        ((path, draft),) = history.drafts.items()
        assert not history.steps
        async with counter.attempt() as (_, again):
            reply = await exchange(counter.port, post(CHAT, streamed_request(), again))
        assert text_of(unchunked(reply.body)).startswith(text)
        first, second = engine.calls()
        # The second request has the durable beginning in its prompt.
        assert second.prompt_tokens == first.prompt_tokens + count(draft.ids)
        history = await counter.subject.history()
        ((_, step),) = history.steps.items()
        assert (step.path, len(step.seams)) == (path, 1)
        (called,) = history.calls.values()
        assert called.created == draft.created
        assert f"chatcmpl-{called.answer}".encode() in connection.events
        assert f"chatcmpl-{called.answer}".encode() in unchunked(reply.body)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_at_once_keep_their_beginnings_in_whatever_order_they_come_back(engine, stream):
    arguments = ("first", "second", "second")
    async with streaming(engine, held()) as (counter, trajectory, binding):
        tasks = [
            Connection(counter.port, post(CHAT, streamed_request(argument), binding))
            for argument in arguments
        ]
        async with tasks[0] as task, tasks[1] as two, tasks[2] as three:
            for connection in (task, two, three):
                await connection.wait_for()
            messages = sorted(
                (word, c.text) for word, c in zip(arguments, (task, two, three), strict=True)
            )
            counter.gateway.release(binding)
            await trajectory.aclose()
        history = await counter.subject.history()
        drafted = {key: call.number for key, call in drafted_calls(history).items()}
        assert len(drafted) == 3
        async with counter.attempt() as (_, again):
            results = []
            for word in reversed(arguments):
                raw = post(CHAT, streamed_request(word, stream=stream), again)
                reply = await exchange(counter.port, raw)
                text = (
                    text_of(unchunked(reply.body))
                    if stream
                    else reply.json["choices"][0]["message"]["content"]
                )
                results.append((word, text))
        for (word, beginning), (again_word, text) in zip(messages, sorted(results), strict=True):
            assert word == again_word
            assert text.startswith(beginning)
        history = await counter.subject.history()
        calls = {key: int(call.path.partition(".")[0]) for key, call in history.calls.items()}
        assert calls == drafted
        assert not history.forks


async def test_a_call_that_is_not_streamed_keeps_its_beginning_where_the_run_keeps_drafts(engine):
    async with streaming(engine) as (counter, trajectory, first):
        counter.gateway.release(first)
        counter.subject.partial_tokens = 8
        async with counter.attempt() as (trajectory, binding):
            await asyncio.to_thread(engine.set_faults, held())
            raw = [
                post(CHAT, streamed_request(item, stream=False), binding) for item in ("one", "two")
            ]
            waiting = [asyncio.create_task(exchange(counter.port, item)) for item in raw]
            await until_held(engine, 2)
            counter.gateway.release(binding)
            await trajectory.aclose()
            await asyncio.gather(*waiting)
        drafted = drafted_calls(await counter.subject.history())
        assert len(drafted) == 2
        async with counter.attempt() as (_, again):
            # Streamed now, and in another order.
            for word in ("two", "one"):
                await exchange(counter.port, post(CHAT, streamed_request(word), again))
        history = await counter.subject.history()
        calls = {key: int(call.path.partition(".")[0]) for key, call in history.calls.items()}
        assert calls == {key: item.number for key, item in drafted.items()}
        assert [len(step.seams) for step in history.generations] == [1, 1]


async def test_a_held_call_is_kept_alive_and_then_told_live(engine):
    async with streaming(engine, held(), ping_seconds=0.02) as (counter, _, binding):
        hold = counter.gateway.hold(60)
        async with Connection(counter.port, post(CHAT, streamed_request(), binding)) as connection:
            await connection.kept_alive()
            assert not engine.requests()
            hold.end()
            await connection.wait_for()
            assert await completions(engine) == 0
            await release(engine)
            assert (await connection.rest()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "kind", [FaultKind.STREAM_CUT, FaultKind.STREAM_ERROR, FaultKind.ABORT, FaultKind.NAN_LOGPROB]
)
async def test_an_engine_that_fails_in_mid_stream_is_nothing_that_the_client_notices(engine, kind):
    async with streaming(engine, Fault(kind, after=60)) as (counter, _, binding):
        reply = await exchange(counter.port, post(CHAT, streamed_request(), binding))
        assert unchunked(reply.body).endswith(b"data: [DONE]\n\n")
        counter.gateway.release(binding)
        message = await answer_of(counter, streamed_request())
        assert text_of(unchunked(reply.body)) == message["content"]
        assert len(engine.requests()) == 2


class Liar:
    """A policy that takes back what it has told, and says something else."""

    model, seconds_down = "oracle", 0.0

    def __init__(self, first: str, second: str):
        self._first, self._second = list(first.encode()), second
        self.calls = 0

    async def sample(self, request):
        self.calls += 1
        ids, logprobs = pack_ids(self._first), pack_logprobs([-0.5] * len(self._first))
        spans = (VersionSpan("v1", 0, len(self._first)),)
        await request.partial.save(Draft(0, ids, logprobs, spans))
        await asyncio.sleep(0.05)
        await request.partial.save(Draft(0))
        return completion(self._second)


async def lied_to(first: str, second: str):
    policy = Liar(first, second)
    subject = TrajectoryUnderTest(policy)
    async with Gateway(WIRES) as gateway:
        counter = Counter(gateway, subject)
        async with counter.attempt() as (_, binding):
            live = await exchange(counter.port, post(CHAT, streamed_request(), binding))
            retry = {"x_stainless_retry_count": "1"}
            again = await exchange(counter.port, post(CHAT, streamed_request(), binding, **retry))
    assert policy.calls == 1
    return unchunked(live.body), unchunked(again.body)


def test_what_does_not_begin_as_it_was_told_is_broken_off_and_told_whole_when_asked_again(caplog):
    live, again = asyncio.run(lied_to("I say this now", "but I mean that"))
    assert text_of(live) == "I say this now"
    assert b"[DONE]" not in live
    assert b'finish_reason":"' not in live
    assert text_of(again) == "but I mean that"
    assert again.endswith(b"data: [DONE]\n\n")
    assert "broken off" in caplog.text
    assert "I say" not in caplog.text


def test_what_begins_as_it_was_told_goes_on_although_it_was_taken_back():
    live, _ = asyncio.run(lied_to("I say this", "I say this, and that"))
    assert text_of(live) == "I say this, and that"
    assert live.endswith(b"data: [DONE]\n\n")
