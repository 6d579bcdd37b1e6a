"""Calls are held while weights change, and what is under way is let end when the gateway closes."""

import asyncio

import pytest

from holdfast.gateway.limits import GatewayLimits
from holdfast.records.errors import UsageError
from support.gateway.counter import (
    BODIES,
    CHAT,
    HELLO,
    Reply,
    exchange,
    narrow,
    opened,
    post,
    until,
)

PINGS = GatewayLimits(ping_seconds=0.02)


def perform(body):
    return asyncio.run(body())


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_held_call_waits_and_is_then_answered(path, stream):
    async def body():
        async with opened(limits=PINGS) as (counter, _, binding):
            raw = post(path, {**BODIES[path], "stream": stream}, binding)
            begun = asyncio.Event()
            async with counter.gateway.held(600):
                signs = begun.set if stream else None
                waiting = asyncio.create_task(exchange(counter.port, raw, begun=signs))
                await until(lambda: counter.gateway.holds.waiting)
                await (until(begun.is_set) if stream else asyncio.sleep(0.1))
                assert not counter.subject.oracle.requests
                assert not waiting.done()
            reply = await waiting
            assert reply.status == 200
            is_alive = b": keep-alive" in reply.body or b"event: ping" in reply.body
            assert is_alive == stream
            assert len(counter.subject.oracle.requests) == 1

    perform(body)


def test_what_is_recorded_is_answered_during_a_hold():
    async def body():
        async with opened() as (counter, _, binding):
            first = await exchange(counter.port, post(CHAT, HELLO, binding))
            counter.gateway.release(binding)
            async with counter.attempt() as (_, again), counter.gateway.held(60):
                second = await exchange(counter.port, post(CHAT, HELLO, again))
            assert second.body == first.body
            assert len(counter.subject.oracle.requests) == 1

    perform(body)


def test_a_hold_lapses_at_its_deadline_and_the_calls_go_on(caplog):
    async def body():
        async with opened() as (counter, _, binding):
            hold = counter.gateway.hold(0.1)
            reply = await exchange(counter.port, post(CHAT, HELLO, binding))
            assert reply.status == 200
            hold.end()

    perform(body)
    assert "came to its deadline" in caplog.text


def test_holds_overlap_and_the_last_one_opens():
    async def body():
        async with opened() as (counter, _, binding):
            first, second = counter.gateway.hold(), counter.gateway.hold()
            waiting = asyncio.create_task(exchange(counter.port, post(CHAT, HELLO, binding)))
            await until(lambda: counter.gateway.holds.waiting)
            first.end()
            first.end()
            await asyncio.sleep(0.05)
            assert not counter.subject.oracle.requests
            second.end()
            assert (await waiting).status == 200

    perform(body)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_hold_without_a_deadline_is_refused(seconds):
    async def body():
        async with opened() as (counter, _, _):
            with pytest.raises(UsageError, match="a deadline"):
                counter.gateway.hold(seconds)

    perform(body)


def test_a_client_that_leaves_a_held_call_and_asks_again_is_one_call():
    async def body():
        async with opened() as (counter, _, binding):
            async with counter.gateway.held(60):
                _, writer = await asyncio.open_connection("127.0.0.1", counter.port)
                writer.write(post(CHAT, HELLO, binding))
                await until(lambda: counter.gateway.holds.waiting)
                writer.close()
                await until(lambda: not counter.gateway._listener.in_flight)
                again = asyncio.create_task(exchange(counter.port, post(CHAT, HELLO, binding)))
                await until(lambda: counter.gateway._listener.in_flight)
            assert (await again).status == 200
            assert len(counter.subject.oracle.requests) == 1

    perform(body)


def test_closing_lets_an_answer_that_is_being_told_end():
    async def body():
        text = "x" * 1_000_000
        async with opened(lambda _: text, limits=GatewayLimits(drain_seconds=600)) as opening:
            counter, _, binding = opening
            request = {**HELLO, "stream": True, "max_tokens": 2_000_000}
            reader, writer = await narrow(counter.port)
            writer.write(post(CHAT, request, binding))
            first = await reader.read(1000)
            closing = asyncio.create_task(counter.gateway.aclose())
            await asyncio.sleep(0.05)
            assert not closing.done()
            with pytest.raises(ConnectionRefusedError):
                await exchange(counter.port, post(CHAT, HELLO, binding))
            reply = Reply(first + await reader.read())
            assert b"data: [DONE]" in reply.body
            await closing
            writer.close()

    perform(body)


def test_closing_cuts_off_what_does_not_end_and_it_is_recorded_all_the_same():
    async def body():
        holds = asyncio.Event()

        async def answer(_):
            await holds.wait()
            return "late"

        limits = GatewayLimits(drain_seconds=0.2)
        async with opened(answer, limits=limits) as (counter, trajectory, binding):
            waiting = asyncio.create_task(exchange(counter.port, post(CHAT, HELLO, binding)))
            await until(lambda: counter.subject.oracle.requests)
            await counter.gateway.aclose()
            assert (await waiting).raw == b""
            holds.set()
            await until(lambda: trajectory.session.history.calls)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    perform(body)


def test_a_request_that_comes_over_a_kept_connection_while_it_closes_is_not_sampled():
    async def body():
        holds = asyncio.Event()

        async def answer(_):
            await holds.wait()
            return "late"

        async with opened(answer) as (counter, _, binding):
            reader, writer = await asyncio.open_connection("127.0.0.1", counter.port)
            writer.write(post(CHAT, HELLO, binding).replace(b"Connection: close\r\n", b""))
            await until(lambda: counter.subject.oracle.requests)
            closing = asyncio.create_task(counter.gateway.aclose())
            await asyncio.sleep(0.01)
            writer.write(post(CHAT, {**HELLO, "temperature": 0.5}, binding))
            await asyncio.sleep(0.01)
            holds.set()
            result = await reader.read()
            await closing
            writer.close()
            assert result.count(b"HTTP/1.1 200") == 1
            assert len(counter.subject.oracle.requests) == 1

    perform(body)
