"""What the gateway answers at which address, to whom, and in whose shape."""

import asyncio

import anthropic
import openai
import pytest

from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.keys import Bearer, Keys
from holdfast.records.errors import ContextOverflow
from support.gateway.counter import (
    BODIES,
    CHAT,
    COUNT,
    HELLO,
    MESSAGES,
    MODELS,
    RESPONSES,
    exchange,
    opened,
    post,
    request,
)


def perform(body):
    return asyncio.run(body())


def openai_client(binding, **options):
    return openai.AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key, **options)


def anthropic_client(binding, **options):
    return anthropic.AsyncAnthropic(base_url=binding.url, api_key=binding.key, **options)


def test_models_are_told_in_the_shape_of_whoever_asks():
    async def body():
        async with opened() as (_, _, binding):
            async with openai_client(binding) as client:
                assert [item.id async for item in client.models.list()] == ["oracle"]
                assert (await client.models.retrieve("oracle")).owned_by == "holdfast"
                with pytest.raises(openai.NotFoundError, match="does not exist"):
                    await client.models.retrieve("another")
            async with anthropic_client(binding) as client:
                assert [item.id async for item in client.models.list()] == ["oracle"]
                assert (await client.models.retrieve("oracle")).type == "model"
                with pytest.raises(anthropic.NotFoundError, match="does not exist"):
                    await client.models.retrieve("another")

    perform(body)


def test_a_models_name_may_hold_a_slash():
    async def body():
        async with opened(model="org/model") as (_, _, binding), openai_client(binding) as client:
            assert (await client.models.retrieve("org/model")).id == "org/model"

    perform(body)


def test_tokens_are_counted_as_they_would_be_sent_and_nothing_is_sampled_or_recorded():
    async def body():
        async with opened() as (counter, _, binding), anthropic_client(binding) as client:
            message = [{"role": "user", "content": "hello"}]
            counted = await client.messages.count_tokens(model="m", messages=message)
            assert not counter.subject.oracle.requests
            assert not (await counter.subject.history()).steps
            first = await client.messages.create(model="m", messages=message, max_tokens=50)
            assert counted.input_tokens == first.usage.input_tokens
            message += [{"role": "assistant", "content": first.content[0].text}]
            message += [{"role": "user", "content": "and then?"}]
            counted = await client.messages.count_tokens(model="m", messages=message)
            second = await client.messages.create(model="m", messages=message, max_tokens=50)
            usage = second.usage
            assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
            assert len(counter.subject.oracle.requests) == 2

    perform(body)


@pytest.mark.parametrize("path", [*BODIES, COUNT, MODELS, f"{MODELS}/oracle", "/complete"])
def test_without_its_key_nothing_of_a_trajectory_is_answered(path):
    async def body():
        async with opened() as (counter, _, binding):
            method = "GET" if path.startswith(MODELS) else "POST"
            for headers in ({}, {"Authorization": "Bearer hf-no"}, {"x-api-key": "no"}):
                reply = await exchange(counter.port, request(method, path, b"{}", **headers))
                assert reply.status == 401
            reply = await exchange(counter.port, request(method, f"/t/hf-no{path}", b"{}"))
            assert reply.status == 401
            counter.gateway.release(binding)
            reply = await exchange(counter.port, request(method, f"/t/{binding.key}{path}", b"{}"))
            assert (reply.status, reply.headers["x-should-retry"]) == (409, "false")
            assert not counter.subject.oracle.requests

    perform(body)


def test_an_attempt_that_wrote_nothing_has_another_key_than_the_next():
    async def body():
        async with opened() as (counter, _, old):
            counter.gateway.release(old)
            async with counter.attempt() as (_, new):
                counter.gateway.release(old)
                assert (await exchange(counter.port, post(CHAT, HELLO, old))).status == 409
                assert (await exchange(counter.port, post(CHAT, HELLO, new))).status == 200

    perform(body)


@pytest.mark.parametrize("path", BODIES)
def test_a_key_in_the_path_is_as_good_as_one_in_a_header(path):
    async def body():
        async with opened() as (counter, _, binding):
            raw = post(f"/t/{binding.key}{path}", BODIES[path])
            assert (await exchange(counter.port, raw)).status == 200
            raw = request("GET", f"/t/{binding.key}{MODELS}")
            assert (await exchange(counter.port, raw)).status == 200

    perform(body)


@pytest.mark.parametrize(
    ("method", "path", "status", "is_anthropic"),
    [
        ("GET", "/", 404, False),
        ("POST", "/v1/embeddings", 404, False),
        ("POST", "/v1/messages/batches", 404, True),
        ("GET", CHAT, 405, False),
        ("DELETE", MESSAGES, 405, True),
        ("GET", COUNT, 405, True),
        ("POST", MODELS, 405, False),
        ("PUT", "/complete", 405, False),
        ("POST", "/health", 405, False),
        ("GET", "/t/", 404, False),
        ("POST", "/t//v1/chat/completions", 401, False),
        ("POST", "/t/x/../../complete", 404, False),
        ("OPTIONS", "*", 404, False),
    ],
)
def test_what_does_not_exist_is_said_in_the_providers_shape(method, path, status, is_anthropic):
    async def body():
        async with opened() as (counter, _, _):
            reply = await exchange(counter.port, request(method, path))
            assert reply.status == status
            assert (reply.json.get("type") == "error") == is_anthropic
            assert reply.json["error"]["message"]
            assert ("allow" in reply.headers) == (status == 405)

    perform(body)


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/chat/completions", "it is /v1/chat/completions: a base URL ends with /v1"),
        ("/v1/v1/chat/completions", "it is /v1/chat/completions: a base URL ends with /v1"),
        ("/v1/v1/messages", "it is /v1/messages: a base URL ends with /v1 for OpenAI clients"),
        ("/v1/complete", "nothing at '/v1/complete'; it is /complete"),
        ("/v1/embeddings", "calls are made at /v1/"),
        ("/v1/t/hf-0123456789abcdef", "nothing at '/v1/t/[redacted]'"),
    ],
)
def test_a_wrong_address_is_told_the_right_one(path, arguments):
    async def body():
        async with opened() as (counter, _, _):
            reply = await exchange(counter.port, request("POST", path))
            assert arguments in reply.json["error"]["message"]

    perform(body)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_carries_its_id_and_an_error_the_clients(stream):
    async def body():
        async with opened() as (counter, _, binding):
            body = {**HELLO, "stream": stream}
            reply = await exchange(counter.port, post(CHAT, body, binding))
            name = reply.headers["x-request-id"]
            assert f"chatcmpl-{name}".encode() in reply.body
            assert reply.headers["request-id"] == name
            mine = {"x_request_id": "my-own.1"}
            reply = await exchange(counter.port, post(CHAT, {}, binding, **mine))
            assert (reply.status, reply.headers["x-request-id"]) == (400, "my-own.1")
            strange = {"x_request_id": "no <name>"}
            reply = await exchange(counter.port, post(CHAT, {}, binding, **strange))
            assert len(reply.headers["x-request-id"]) == 32

    perform(body)


def late_refusal():
    """An engine that says no only after the stream has begun."""
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return ContextOverflow("no room")

    return gate, answer


async def refused_in_a_stream(path, use):
    gate, answer = late_refusal()
    async with opened(answer, limits=GatewayLimits(ping_seconds=0.02)) as (counter, _, binding):
        if use is not None:
            return await use(binding, gate)
        body = {**BODIES[path], "stream": True}
        return await exchange(counter.port, post(path, body, binding), begun=gate.set)


def test_an_error_in_a_stream_has_the_wires_own_shape():
    async def body():
        chat = await refused_in_a_stream(CHAT, None)
        assert (chat.status, b'data: {"error":{' in chat.body) == (200, True)
        assert b"context_length_exceeded" in chat.body
        assert b": keep-alive" in chat.body
        responses = await refused_in_a_stream(RESPONSES, None)
        assert b'event: error\ndata: {"type":"error","code":"context_length' in responses.body
        assert b'"param":null,"sequence_number":0}' in responses.body
        messages = await refused_in_a_stream(MESSAGES, None)
        assert b'event: error\ndata: {"type":"error","error":{' in messages.body
        assert b"prompt is too long" in messages.body

    perform(body)


def test_the_published_libraries_raise_an_error_in_a_stream_as_theirs():
    async def with_openai(binding, gate):
        async with openai_client(binding, max_retries=0) as client:
            stream = await client.chat.completions.create(**HELLO, stream=True)
            gate.set()
            with pytest.raises(openai.APIError, match="no room"):
                async for _ in stream:
                    pass

    async def with_anthropic(binding, gate):
        async with anthropic_client(binding, max_retries=0) as client:
            stream = await client.messages.create(**BODIES[MESSAGES], stream=True)
            gate.set()
            with pytest.raises(anthropic.APIError, match="no room"):
                async for _ in stream:
                    pass

    async def body():
        await refused_in_a_stream(CHAT, with_openai)
        await refused_in_a_stream(MESSAGES, with_anthropic)

    perform(body)


def test_completing_twice_changes_nothing_and_nonsense_is_refused():
    async def body():
        async with opened() as (counter, trajectory, binding):
            for bad in (b"[]", b'{"reward": "1"}', b'{"reward": true}', b'{"r": 1}', b"\xff", b"{"):
                reply = await exchange(counter.port, post("/complete", bad, binding))
                assert reply.status == 400
            reply = await exchange(counter.port, post("/complete", b'{"reward": 1e999}', binding))
            assert reply.status == 400
            assert not trajectory.completed.is_set()
            for reward in (0.5, 0.75):
                raw = post("/complete", {"reward": reward}, binding)
                assert (await exchange(counter.port, raw)).json["reward"] == 0.5
            assert trajectory.reward == 0.5

    perform(body)


@pytest.mark.parametrize("way", ["path and bearer", "path and x-api-key", "bearer and x-api-key"])
def test_two_keys_in_one_request_are_refused_where_they_belong_to_two_trajectories(way):
    async def body():
        keys = Keys()
        async with opened(keys=keys) as (counter, _, binding):
            mine, another = binding.key, keys.make(Bearer("run/t/1", 1, 1, 99))
            prefix, headers = {
                "path and bearer": (f"/t/{mine}", {"Authorization": f"Bearer {another}"}),
                "path and x-api-key": (f"/t/{mine}", {"x_api_key": another}),
                "bearer and x-api-key": (
                    "",
                    {"Authorization": f"Bearer {mine}", "x_api_key": another},
                ),
            }[way]
            for path in (CHAT, "/complete", "/mcp"):
                raw = post(f"{prefix}{path}", BODIES.get(path, b"{}"), **headers)
                reply = await exchange(counter.port, raw)
                assert (reply.status, reply.json["error"]["code"]) == (400, "several_keys")
                assert b"hf-" not in reply.body
            assert not counter.subject.oracle.requests

    perform(body)


def test_a_key_in_the_address_goes_with_whatever_else_a_client_has_to_send_as_one():
    async def body():
        async with opened() as (counter, _, binding):
            for key in ("sk-anything", binding.key):
                headers = {"Authorization": f"Bearer {key}", "x_api_key": "none"}
                raw = post(f"/t/{binding.key}{CHAT}", HELLO, **headers)
                assert (await exchange(counter.port, raw)).status == 200

    perform(body)


def test_calls_after_the_agent_said_that_it_is_done_are_refused_and_sample_nothing():
    async def body():
        async with opened() as (counter, _, binding):
            assert (await exchange(counter.port, post(CHAT, BODIES[CHAT], binding))).status == 200
            assert (await exchange(counter.port, post("/complete", b"", binding))).status == 200
            for path in (*BODIES, "/tools/anything"):
                reply = await exchange(counter.port, post(path, BODIES.get(path, {}), binding))
                assert reply.status == 409, path
                assert b"said that it is done (POST /complete)" in reply.body
            assert len(counter.subject.oracle.requests) == 1
            assert not (await counter.subject.history()).refusals

    perform(body)
