"""A gateway is told from outside to hold calls while weights change: by whoever knows its token, at
all workers, until a deadline, and never beyond a restart."""

import asyncio
import os
import re
import signal
import time
from functools import partial

import pytest

from holdfast.gateway.address import Address
from holdfast.gateway.assignment.hold_routes import HoldRoutes
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.gateway.workers.peers import Peers, WorkerPlace
from holdfast.policy.hold import CallHolds
from holdfast.testing import FakeEngine
from support.engine.local_run import LocalRun
from support.gateway.counter import CHAT, HELLO, Counter, exchange, opened
from support.gateway.counter import post as raw_post
from support.gateway.external_agents import ask, post, with_agents
from support.gateway.gateway_process import (
    REPLIES,
    SIGKILLED,
    Agent,
    GatewayProcess,
    holding,
    posted,
    until,
    work,
)
from support.gateway.worker_pairs import pair
from support.rollout.stage import Oracle, TrajectoryUnderTest

TOKEN = "a-token-of-some-length"
OPEN = {"held": False, "workers": 1}


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(replies=REPLIES) as engine:
        yield engine


@pytest.fixture
def gateway_process(tmp_path, engine):
    engine.reset()
    result = GatewayProcess(tmp_path, engine, "--workers", 2, "--concurrency", 4)
    yield result
    result.close()


async def gauges(http, url: str, **headers: str) -> dict[str, float]:
    async with http.get(f"{url}/metrics", headers=headers) as answer:
        text = await answer.text()
    return {
        name: float(value)
        for name, value in re.findall(r"^holdfast_gateway_(\w+) (\S+)$", text, re.MULTILINE)
    }


async def taken_at(http, url: str) -> dict:
    status, taken = await post(http, f"{url}/trajectories", {"wait": 10})
    assert status == 200, taken
    return taken


async def complete(http, taken: dict) -> None:
    assert (await post(http, f"{taken['bound_url']}/complete", {"reward": 1}))[0] == 200


def test_calls_wait_from_hold_to_release_and_streams_are_kept_alive():
    local = LocalRun()

    async def agents(http, url):
        taken = await taken_at(http, url)
        status, reply = await post(http, f"{url}/hold", {"seconds": 60})
        assert (status, reply) == (200, {"held": True, "seconds": 60.0, "workers": 1})
        body = {"model": "m", "messages": taken["task"]["messages"], "stream": True}
        stream = b""
        async with http.post(f"{taken['bound_url']}/v1/chat/completions", json=body) as answer:
            while b": keep-alive" not in stream:
                stream += await answer.content.readany()
            numbers = await gauges(http, url)
            assert (numbers["held"], numbers["holding"]) == (1, 1)
            assert numbers["hold_seconds_total"] > 0
            assert not local.policy.requests
            assert await post(http, f"{url}/release") == (200, OPEN)
            stream += await answer.content.read()
        assert stream.endswith(b"data: [DONE]\n\n")
        numbers = await gauges(http, url)
        assert (numbers["held"], numbers["holding"]) == (0, 0)
        await complete(http, taken)

    with_agents(local, agents, limits=GatewayLimits(ping_seconds=0.02))
    assert len(local.policy.requests) == 1


def test_a_hold_ends_at_its_deadline_and_the_last_word_counts():
    async def agents(http, url):
        taken = await taken_at(http, url)
        # Each of them anew, and the last one is short.
        for seconds in (60, 600, 0.3):
            assert (await post(http, f"{url}/hold", {"seconds": seconds}))[0] == 200
        started = time.monotonic()
        status, _ = await ask(http, taken, *taken["task"]["messages"])
        assert status == 200
        assert time.monotonic() - started < 30
        assert (await gauges(http, url))["holding"] == 0
        for _ in range(2):
            assert await post(http, f"{url}/release") == (200, OPEN)
        await complete(http, taken)

    with_agents(LocalRun(), agents)


@pytest.mark.parametrize(
    "body",
    [
        {"seconds": 0},
        {"seconds": -1},
        {"seconds": 86_401},
        {"seconds": "60"},
        {"seconds": True},
        {"second": 60},
        [],
    ],
)
def test_what_is_no_hold_is_refused_and_holds_nothing(body):
    async def agents(http, url):
        taken = await taken_at(http, url)
        status, reply = await post(http, f"{url}/hold", body)
        assert status == 400, reply
        assert (await post(http, f"{url}/release", {"seconds": 1}))[0] == 400
        assert (await gauges(http, url))["holding"] == 0
        await complete(http, taken)

    with_agents(LocalRun(), agents)


def test_only_the_token_holds_and_releases():
    async def agents(http, url):
        admin = {"Authorization": f"Bearer {TOKEN}"}
        status, taken = await post(http, f"{url}/trajectories", {"wait": 10}, **admin)
        assert status == 200
        for path in ("hold", "release"):
            for key in ("", "x" * 20, taken["key"]):
                status, _ = await post(http, f"{url}/{path}", {}, Authorization=f"Bearer {key}")
                assert status == 401
            # Neither by the key in an address.
            assert (await post(http, f"{taken['bound_url']}/{path}", {}))[0] == 401
            async with http.get(f"{url}/{path}", headers=admin) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await gauges(http, url, **admin))["holding"] == 0
        assert (await post(http, f"{url}/hold", {}, **admin))[0] == 200
        assert (await gauges(http, url, **admin))["holding"] == 1
        assert (await post(http, f"{url}/release", **admin))[0] == 200
        await complete(http, taken)

    with_agents(LocalRun(), agents, address=Address(token=TOKEN))


# --- several workers


def is_held(worker) -> bool:
    return bool(worker._gateway.holds.gauges["holding"])


def test_whichever_worker_is_asked_all_of_them_hold_and_release(tmp_path):
    async def body():
        async with pair(tmp_path) as result:
            taken = [await result.take(url) for url in result.urls]
            for here, there in ((0, 1), (1, 0)):
                status, reply = await post(
                    result.http, f"{result.urls[here]}/hold", {"seconds": 60}
                )
                assert (status, reply["workers"]) == (200, 2)
                assert all(is_held(worker) for worker in result.workers)
                status, body = await post(result.http, f"{result.urls[there]}/release")
                assert (status, body) == (200, {"held": False, "workers": 2})
                assert not any(is_held(worker) for worker in result.workers)
            for item in taken:
                await complete(result.http, item)

    asyncio.run(body())


async def test_orders_that_are_given_at_once_leave_all_workers_in_one_state(tmp_path):
    async with pair(tmp_path) as result:
        taken = [await result.take(url) for url in result.urls]
        for _ in range(25):
            first, second = result.urls
            await asyncio.gather(
                post(result.http, f"{first}/hold", {"seconds": 60}),
                post(result.http, f"{second}/release"),
                post(result.http, f"{second}/hold", {"seconds": 50}),
                post(result.http, f"{first}/release"),
            )
            single, other = map(is_held, result.workers)
            assert single == other
        await post(result.http, f"{first}/release")
        for single in taken:
            await complete(result.http, single)


def test_a_worker_that_is_started_again_is_held_as_the_others_are(gateway_process, engine):
    gateway_process.start()
    until(lambda: holding(gateway_process) == ["0", "0"])
    assert posted(f"{gateway_process.url}/hold", {"seconds": 600})["workers"] == 2
    agents = [Agent(gateway_process), Agent(gateway_process)]
    for agent in agents:
        agent.start()
    for pid in gateway_process.workers:
        os.kill(pid, signal.SIGKILL)
        until(partial(are_held_without, gateway_process, pid))
    assert not engine.requests()
    posted(f"{gateway_process.url}/release", {})
    assert work(gateway_process, *agents) == 0, gateway_process.output


def are_held_without(gateway_process: GatewayProcess, killed: int) -> bool:
    return killed not in gateway_process.workers and holding(gateway_process) == ["1", "1"]


def test_a_gateway_that_is_started_again_is_not_held(gateway_process):
    gateway_process.start()
    until(lambda: holding(gateway_process) == ["0", "0"])
    posted(f"{gateway_process.url}/hold", {"seconds": 600})
    gateway_process.signal(signal.SIGKILL)
    assert gateway_process.ended() == SIGKILLED
    gateway_process.start()
    until(lambda: holding(gateway_process) == ["0", "0"])
    assert work(gateway_process, Agent(gateway_process), Agent(gateway_process)) == 0, (
        gateway_process.output
    )


def test_a_held_gateway_ends_all_the_same_when_it_is_told_to(gateway_process, engine):
    gateway_process.start("--grace", 2, "--drain", 1)
    until(lambda: holding(gateway_process) == ["0", "0"])
    posted(f"{gateway_process.url}/hold", {"seconds": 600})
    agent = Agent(gateway_process)
    agent.start()
    until(lambda: agent.taken)
    gateway_process.signal(signal.SIGTERM)
    assert gateway_process.ended() == 143, gateway_process.output
    agent.halt()


def bearer(counter: Counter) -> dict[str, str]:
    return {"Authorization": f"Bearer {counter.gateway.token}"}


NO_TEXT = b'{"\xff": 1}'


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/hold", NO_TEXT), ("/release", NO_TEXT), ("/mcp", b'{"id": 1, "method": "\xff"}')],
)
async def test_a_body_that_is_no_text_is_refused(path, sent):
    outside = HoldRoutes(lambda seconds: CallHolds().hold(seconds), peers=None)
    async with opened(endpoints=outside.endpoints()) as (counter, _, binding):
        headers = {} if path == "/mcp" else bearer(counter)
        reply = await exchange(counter.port, raw_post(path, sent, binding, **headers))
        assert reply.status == 400, reply.body


async def test_a_hold_that_is_asked_for_while_the_gateway_closes_holds_up_nothing():
    """Its head came before, and its body after."""

    async def begun(port: int, raw: bytes):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head, end, rest = raw.partition(b"\r\n\r\n")
        writer.write(head + end)
        await writer.drain()

        async def finish() -> bytes:
            writer.write(rest)
            message = await reader.read()
            writer.close()
            return message

        return finish

    outside = HoldRoutes(lambda seconds: gateway.hold(seconds), peers=None)
    limits = GatewayLimits(drain_seconds=30)
    gateway = Gateway(WIRES, limits=limits, endpoints=outside.endpoints())
    async with gateway:
        counter = Counter(gateway, TrajectoryUnderTest(Oracle()))
        async with counter.attempt() as (_, binding):
            hold = await begun(counter.port, raw_post("/hold", {"seconds": 600}, **bearer(counter)))
            call = await begun(counter.port, raw_post(CHAT, HELLO, binding))
            while gateway._listener.in_flight < 2:
                await asyncio.sleep(0.005)
            closing = asyncio.create_task(gateway.aclose())
            while not gateway._listener.is_closing:
                await asyncio.sleep(0.005)
            assert (await hold()).startswith(b"HTTP/1.1 200")
            assert (await call()).startswith(b"HTTP/1.1 200")
            await closing


def test_a_hold_outlives_all_workers_at_once_and_so_does_a_release(tmp_path):
    with FakeEngine(replies=REPLIES) as engine:
        gateway_process = GatewayProcess(tmp_path, engine, "--workers", 2, "--concurrency", 4)
        try:
            gateway_process.start()
            until(lambda: holding(gateway_process) == ["0", "0"])
            assert posted(f"{gateway_process.url}/hold", {"seconds": 600})["workers"] == 2
            kill_all_at_once(gateway_process)
            until(lambda: holding(gateway_process) == ["1", "1"])
            posted(f"{gateway_process.url}/release", {})
            kill_all_at_once(gateway_process)
            until(lambda: holding(gateway_process) == ["0", "0"])
            assert work(gateway_process, Agent(gateway_process), Agent(gateway_process)) == 0, (
                gateway_process.output
            )
        finally:
            gateway_process.close()


def kill_all_at_once(gateway_process: GatewayProcess) -> None:
    killed = gateway_process.workers
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in killed:
            os.kill(pid, number)
    until(lambda: not set(killed) & set(gateway_process.workers))


async def test_an_order_that_cannot_be_kept_is_obeyed_and_it_is_said(tmp_path, caplog):
    holds = CallHolds()
    peers = Peers(WorkerPlace(str(tmp_path / "gone"), 0, 1))
    outside = HoldRoutes(holds.hold, peers=peers)
    async with opened(endpoints=outside.endpoints()) as (counter, _, _):
        raw = raw_post("/hold", {"seconds": 60}, **bearer(counter))
        reply = await exchange(counter.port, raw)
        assert (reply.status, reply.json["workers"]) == (200, 1)
        assert holds.gauges["holding"]
    assert "a hold is not kept" in caplog.text
