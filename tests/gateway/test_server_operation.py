"""Health, metrics, logs, the token, TLS and the address that agents are told."""

import asyncio
import logging
import re
import ssl
import subprocess

import aiohttp
import pytest

from holdfast.gateway.address import Address
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.records.errors import UsageError
from support.gateway.counter import CHAT, HELLO, MESSAGES, exchange, opened, post, request

TOKEN = "a-token-of-some-length"


def perform(body):
    return asyncio.run(body())


async def metrics(counter, **headers) -> dict[str, float]:
    reply = await exchange(counter.port, request("GET", "/metrics", **headers))
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in reply.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_health_needs_no_key():
    async def body():
        async with opened(at=Address(token=TOKEN)) as (counter, _, _):
            reply = await exchange(counter.port, request("GET", "/health"))
            assert reply.json == {"status": "ok", "trajectories": 1}

    perform(body)


def test_metrics_count_calls_by_wire_and_status_and_what_was_replayed():
    async def body():
        async with opened() as (counter, _, binding):
            await exchange(counter.port, post(CHAT, HELLO, binding))
            await exchange(counter.port, post(CHAT, {}, binding))
            await exchange(counter.port, post(MESSAGES, {}))
            await exchange(counter.port, post(f"/{binding.key}", {}))
            counter.gateway.release(binding)
            async with counter.attempt() as (_, again):
                await exchange(counter.port, post(CHAT, HELLO, again))
                await exchange(counter.port, post(CHAT, {**HELLO, "temperature": 0.5}, again))
                numbers = await metrics(counter)
        calls, seconds = "holdfast_gateway_calls_total", "holdfast_gateway_call_seconds"
        assert numbers[f'{calls}{{wire="{CHAT}",status="200"}}'] == 3
        assert numbers[f'{calls}{{wire="{CHAT}",status="400"}}'] == 1
        assert numbers[f'{calls}{{wire="{MESSAGES}",status="401"}}'] == 1
        assert numbers[f'{calls}{{wire="unknown",status="404"}}'] == 1
        assert numbers['holdfast_gateway_answers_total{source="sampled"}'] == 2
        assert numbers['holdfast_gateway_answers_total{source="replayed"}'] == 1
        assert numbers[f'{seconds}_count{{wire="{CHAT}"}}'] == 4
        assert numbers[f'{seconds}_bucket{{wire="{CHAT}",le="+Inf"}}'] == 4
        assert numbers["holdfast_gateway_trajectories"] == 1
        # The one that asks for them.
        assert numbers["holdfast_gateway_in_flight"] == 1
        assert numbers["holdfast_gateway_held"] == 0

    perform(body)


def test_the_token_opens_the_metrics_and_no_trajectory():
    async def body():
        async with opened(at=Address(token=TOKEN)) as (counter, _, binding):
            assert await metrics(counter, Authorization=f"Bearer {TOKEN}")
            for key in ("", "x" * 20, binding.key, "ÿ" * 20):
                raw = request("GET", "/metrics", Authorization=f"Bearer {key}")
                assert (await exchange(counter.port, raw)).status == 401
            raw = post(CHAT, HELLO, Authorization=f"Bearer {TOKEN}")
            assert (await exchange(counter.port, raw)).status == 401

    perform(body)


def test_an_endpoint_of_its_own_is_opened_by_the_token_and_read_within_the_limits():
    async def twice(context):
        return await context.send(2 * await context.body())

    async def body():
        limits, endpoints = GatewayLimits(body=10), {"/twice": twice}
        options = {"at": Address(token=TOKEN), "endpoints": endpoints, "limits": limits}
        async with opened(**options) as (counter, _, binding):
            token = {"Authorization": f"Bearer {TOKEN}"}
            reply = await exchange(counter.port, post("/twice", b"[1]", **token))
            assert reply.body == b"[1][1]"
            assert (await exchange(counter.port, post("/twice", b"[1]", binding))).status == 401
            reply = await exchange(counter.port, post("/twice", b"x" * 11, **token))
            assert reply.status == 413
            reply = await exchange(counter.port, request("GET", "/twice", **token))
            assert reply.status == 405

    perform(body)


def test_one_line_is_logged_for_each_call_without_its_key_or_body(caplog):
    async def body():
        async with opened() as (counter, _, binding):
            body = {"model": "m", "messages": [{"role": "user", "content": "canary-words"}]}
            await exchange(counter.port, post(CHAT, body, binding))
            await exchange(counter.port, post(f"/t/{binding.key}{CHAT}", body))
            await exchange(counter.port, post(f"/t/{binding.key}/nowhere", body))
            await exchange(counter.port, request("GET", "/health"))
            return binding.key

    with caplog.at_level(logging.INFO):
        key = perform(body)
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.gateway"]
    assert [re.sub(r"\d+\.\d{4}$", "N", line) for line in lines] == [
        f"call trajectory=run/t/0 wire={CHAT} status=200 replayed=no seconds=N",
        f"call trajectory=run/t/0 wire={CHAT} status=200 replayed=no seconds=N",
        "call trajectory=- wire=unknown status=404 replayed=- seconds=N",
    ]
    assert key not in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_beyond_loopback_a_token_is_wanted(host):
    with pytest.raises(UsageError, match="give it a token"):
        Gateway(WIRES, at=Address(host=host))
    Gateway(WIRES, at=Address(host=host, token=TOKEN))


@pytest.mark.parametrize("token", ["", "short", "ÿ" * 20])
def test_a_token_that_is_none_is_refused(token):
    with pytest.raises(UsageError, match="at least 16 characters"):
        Gateway(WIRES, at=Address(host="0.0.0.0", token=token))


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, r"http://127\.0\.0\.1:\d+"),
        ({"host": "localhost"}, r"http://localhost:\d+"),
        ({"host": "0.0.0.0", "token": TOKEN, "advertise": "agents.org"}, r"http://agents.org:\d+"),
        ({"advertise": "::1"}, r"http://\[::1\]:\d+"),
        ({"advertise": "https://proxy.org/here/"}, r"https://proxy.org/here"),
    ],
)
def test_agents_are_told_an_address_that_they_can_reach(options, address):
    async def body():
        async with opened(at=Address(**options)) as (_, _, binding):
            assert re.fullmatch(address, binding.url)
            assert binding.bound_url == f"{binding.url}/t/{binding.key}"

    perform(body)


def test_calls_are_answered_over_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *(
                "-nodes",
                "-keyout",
                key,
                "-out",
                certificate,
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=str(certificate))

    async def body():
        async with opened(at=Address(tls=context, advertise="localhost")) as (_, _, binding):
            assert binding.url.startswith("https://")
            connector = aiohttp.TCPConnector(ssl=trusted)
            async with (
                aiohttp.ClientSession(connector=connector) as http,
                http.post(f"{binding.bound_url}{CHAT}", json=HELLO) as reply,
            ):
                assert reply.status == 200
                assert (await reply.json())["object"] == "chat.completion"

    perform(body)
