"""Clients that send too much, too slowly or nonsense, that do not read, or that go away."""

import asyncio
import contextlib
import gzip
import json
import logging
import time
import zlib

import pytest

from holdfast.engine.guards.event_loop import fewer_collections
from holdfast.gateway import server
from holdfast.gateway.calls.digest import digests
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.wires.all import WIRES
from holdfast.gateway.wires.openai.chat import OpenAIChat
from support.gateway.counter import (
    BODIES,
    CHAT,
    COUNT,
    HELLO,
    MESSAGES,
    Reply,
    exchange,
    narrow,
    opened,
    post,
    request,
    until,
)

SECRET = "canary-0123456789"
SMALL = GatewayLimits(body=10_000, body_seconds=1.0, write_seconds=1.0, idle_seconds=1.0)


def perform(body):
    return asyncio.run(body())


async def is_well(counter, binding) -> bool:
    return (await exchange(counter.port, post(CHAT, HELLO, binding))).status == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES, COUNT, "/complete"])
def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(path):
    async def body():
        async with opened(limits=SMALL) as (counter, _, binding):
            large = b" " * 20_000
            chunked = f"{len(large):x}\r\n".encode() + large + b"\r\n0\r\n\r\n"
            key = {"Authorization": f"Bearer {binding.key}"}
            unsaid = request("POST", path, **key, Transfer_Encoding="chunked")
            unsaid = unsaid.replace(b"Content-Length: 0\r\n", b"") + chunked
            zipped = post(path, gzip.compress(large), binding, Content_Encoding="gzip")
            for raw in (post(path, large, binding), unsaid, zipped):
                reply = await exchange(counter.port, raw)
                assert reply.status == 413
                assert (reply.json.get("type") == "error") == path.startswith(MESSAGES)
                assert reply.json["error"]["message"] == "a body holds at most 10000 bytes"
            assert await is_well(counter, binding)

    perform(body)


def test_a_body_that_is_only_announced_is_refused_before_it_comes():
    async def body():
        async with opened() as (counter, _, binding):
            raw = request("POST", CHAT, Authorization=f"Bearer {binding.key}")
            raw = raw.replace(b"Content-Length: 0", b"Content-Length: 999999999999")
            assert (await exchange(counter.port, raw)).status == 413

    perform(body)


def test_a_body_that_comes_slowly_is_given_up_and_nobody_else_waits():
    async def body():
        async with opened(limits=SMALL) as (counter, _, binding):
            raw = post(CHAT, HELLO, binding)
            slow = asyncio.create_task(exchange(counter.port, raw[:-3]))
            assert await is_well(counter, binding)
            reply = await slow
            assert (reply.status, reply.json["error"]["code"]) == (408, "request_timeout")

    perform(body)


def test_headers_that_never_end_and_silence_are_given_up():
    async def body():
        async with opened(limits=SMALL) as (counter, _, binding):
            for beginning in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: b"):
                assert (await exchange(counter.port, beginning)).raw == b""
            assert await is_well(counter, binding)

    perform(body)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"canary-0123456789\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\ncanary-0123456789\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: canary-0123456789" + b"a" * 20_000, 431),
        (b"GET /" + b"canary-0123456789" * 2_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + b"A: canary-0123456789\r\n" * 300 + b"\r\n", 400),
        (b"POST /complete HTTP/1.1\r\nContent-Length: canary-0123456789\r\n\r\n", 400),
        (b"\x16\x03\x01canary-0123456789\r\n\r\n", 400),
    ],
)
def test_what_is_no_http_is_refused_and_told_to_nobody(raw, status, caplog):
    async def body():
        async with opened() as (counter, _, _):
            reply = await exchange(counter.port, raw)
            assert reply.status == status
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert b"canary" not in reply.raw

    with caplog.at_level(logging.DEBUG):
        perform(body)
    assert "canary" not in caplog.text


@pytest.mark.parametrize("path", [*BODIES, COUNT])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"\xed\xa0\x80"', b"[" * 100_000, b'{"model": 1}'],
)
def test_a_body_that_is_not_a_request_is_the_clients_fault(path, body):
    async def run():
        async with opened() as (counter, _, binding):
            reply = await exchange(counter.port, post(path, body, binding))
            assert reply.status == 400
            assert reply.json["error"]["message"]
            assert not counter.subject.oracle.requests

    perform(run)


def test_a_body_that_is_not_what_its_headers_say_is_the_clients_fault():
    async def body():
        async with opened() as (counter, _, binding):
            raw = post(CHAT, HELLO, binding, Content_Encoding="gzip")
            assert (await exchange(counter.port, raw)).status == 400
            raw = post(CHAT, gzip.compress(json.dumps(HELLO).encode()), binding)
            assert (await exchange(counter.port, raw)).status == 400

    perform(body)


def test_whoever_asks_before_it_sends_a_body_is_told_to_go_on():
    async def body():
        async with opened() as (counter, _, binding):
            raw = post(CHAT, HELLO, binding, Expect="100-continue")
            reply = await exchange(counter.port, raw)
            assert reply.status == 100
            assert Reply(reply.body).status == 200
            raw = post(CHAT, HELLO, Expect="100-continue")
            assert (await exchange(counter.port, raw)).status == 401

    perform(body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_does_not_read_is_given_up_and_can_ask_again(stream):
    async def body():
        text = "x" * 1_000_000
        limits = GatewayLimits(write_seconds=1.0)
        async with opened(lambda _: text, limits=limits) as (counter, trajectory, binding):
            body = {**HELLO, "stream": stream, "max_tokens": 2_000_000}
            _, writer = await narrow(counter.port)
            writer.write(post(CHAT, body, binding))
            await until(lambda: trajectory.session.history.calls)
            await asyncio.sleep(0)
            small = post("/v1/messages/count_tokens", HELLO, binding)
            assert (await exchange(counter.port, small)).status == 200
            await until(lambda: counter.gateway._listener.in_flight == 0)
            writer.close()
            # It was not delivered, so that the same request is the same call.
            reply = await exchange(counter.port, post(CHAT, body, binding))
            assert reply.status == 200
            assert len(counter.subject.oracle.requests) == 1
            assert len(reply.body) > len(text)

    perform(body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("cut", ["headers", "body", "answer"])
def test_a_client_that_goes_away_leaves_no_task_and_no_listener(stream, cut):
    async def body():
        gate = asyncio.Event()

        async def answer(_):
            await gate.wait()
            return "late"

        limits = GatewayLimits(ping_seconds=0.01)
        async with opened(answer, limits=limits) as (counter, trajectory, binding):
            before = asyncio.all_tasks()
            raw = post(CHAT, {**HELLO, "stream": stream}, binding)
            length = {"headers": 30, "body": len(raw) - 3, "answer": len(raw)}[cut]
            _, writer = await asyncio.open_connection("127.0.0.1", counter.port)
            writer.write(raw[:length])
            await asyncio.sleep(0.05)
            if cut == "answer":
                await until(lambda: counter.subject.oracle.requests)
                assert not trajectory.is_silent(-1)
            writer.close()
            await until(lambda: counter.gateway._listener.in_flight == 0)
            gate.set()
            await until(lambda: asyncio.all_tasks() == before)
            assert trajectory.is_silent(-1)
            assert len(trajectory.session.history.calls) == (cut == "answer")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    perform(body)


class Broken(OpenAIChat):
    """A wire with a bug."""

    def __init__(self, where: str):
        self.where = where

    def parse(self, body, known=None):
        if self.where == "ask":
            raise KeyError(SECRET)
        return super().parse(body, known)

    def format_answer(self, ask, answer):
        raise KeyError(SECRET)


@pytest.mark.parametrize("where", ["ask", "answer", "engine"])
def test_what_nobody_foresaw_is_a_500_without_internals_and_one_line_in_the_log(where, caplog):
    def fails(_):
        return KeyError(SECRET)

    async def body():
        async with opened(fails if where == "engine" else None) as (counter, _, binding):
            if where != "engine":
                counter.gateway._wires[CHAT] = Broken(where)
            reply = await exchange(counter.port, post(CHAT, HELLO, binding))
            assert (reply.status, reply.json["error"]["code"]) == (500, "internal_error")
            assert reply.json["error"]["type"] == "server_error"
            assert b"canary" not in reply.raw
            assert b"KeyError" not in reply.raw

    with caplog.at_level(logging.INFO, "holdfast"):
        perform(body)
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "run/t/0" in error.getMessage()
    assert "KeyError" in error.getMessage()
    assert "canary" not in caplog.text


async def longest_turn(work) -> tuple[float, object]:
    """The most CPU that the event loop spent between two of its turns meanwhile, and the result.
    The CPU of threads does not count: others get on beside them."""
    task, longest, last = asyncio.ensure_future(work), 0.0, time.thread_time()
    while not task.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.thread_time() - last), time.thread_time()
    return longest, task.result()


MANY = b",".join([b'{"role":"user","content":"a few words"}'] * 200_000)


def test_a_large_request_of_one_agent_does_not_stop_the_others():
    raw = b'{"model":"m","messages":[' + MANY + b"]}"

    async def body():
        async with opened() as (counter, _trajectory, binding):
            before = time.thread_time()
            request = WIRES[CHAT].parse(raw)
            digests(request.messages)
            itself = time.thread_time() - before
            longest, reply = await longest_turn(exchange(counter.port, post(CHAT, raw, binding)))
            assert reply.status == 200
            assert longest < itself / 2

    with fewer_collections():  # As the command does.
        perform(body)


def packed(megabytes: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(packer.compress(b" " * 2**20) for _ in range(megabytes)) + packer.flush()


async def test_the_rest_of_a_packed_body_that_is_refused_is_not_unpacked(monkeypatch):
    rejected, send_rejection = [], server.send_rejection

    async def kept(context, rejection):
        rejected.append(context.request)
        return await send_rejection(context, rejection)

    monkeypatch.setattr(server, "send_rejection", kept)
    async with opened() as (counter, _, binding):
        bomb = post(CHAT, packed(100), Content_Encoding="gzip")
        with contextlib.suppress(ConnectionResetError):  # It was still sending.
            assert (await exchange(counter.port, bomb)).status == 401
        await asyncio.sleep(0.1)
        assert rejected[0].content.total_bytes < 10_000_000
        # A small one that is refused, and one that is not, are as any other.
        small = zlib.compress(b"{}")
        raw = post(CHAT, small, Content_Encoding="deflate")
        assert (await exchange(counter.port, raw)).status == 401
        assert (await exchange(counter.port, post(CHAT, HELLO, binding))).status == 200
