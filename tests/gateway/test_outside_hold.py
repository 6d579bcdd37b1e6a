"""A gateway is told from outside to hold calls while weights change: by whoever knows its token, at
all workers, until a deadline, and never beyond a restart."""

import asyncio
import os
import re
import signal
import time
import urllib.error
import urllib.request
from functools import partial

import pytest
from outpost import REPLIES, SIGKILLED, Agent, Outpost, posted, until, work
from test_external import ask, post, with_agents
from test_relay import pair
from yard import Yard

from holdfast.gateway.address import Address
from holdfast.gateway.limits import GatewayLimits
from holdfast.testing import FakeEngine

TOKEN = "a-token-of-some-length"
OPEN = {"held": False, "workers": 1}


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
    yard = Yard()

    async def agents(http, url):
        taken = await taken_at(http, url)
        status, told = await post(http, f"{url}/hold", {"seconds": 60})
        assert (status, told) == (200, {"held": True, "seconds": 60.0, "workers": 1})
        body = {"model": "m", "messages": taken["task"]["messages"], "stream": True}
        heard = b""
        async with http.post(f"{taken['bound_url']}/v1/chat/completions", json=body) as answer:
            while b": keep-alive" not in heard:
                heard += await answer.content.readany()
            found = await gauges(http, url)
            assert (found["held"], found["holding"]) == (1, 1)
            assert found["hold_seconds_total"] > 0
            assert not yard.policy.requests
            assert await post(http, f"{url}/release") == (200, OPEN)
            heard += await answer.content.read()
        assert heard.endswith(b"data: [DONE]\n\n")
        found = await gauges(http, url)
        assert (found["held"], found["holding"]) == (0, 0)
        await complete(http, taken)

    with_agents(yard, agents, limits=GatewayLimits(ping_seconds=0.02))
    assert len(yard.policy.requests) == 1


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

    with_agents(Yard(), agents)


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
        status, told = await post(http, f"{url}/hold", body)
        assert status == 400, told
        assert (await post(http, f"{url}/release", {"seconds": 1}))[0] == 400
        assert (await gauges(http, url))["holding"] == 0
        await complete(http, taken)

    with_agents(Yard(), agents)


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

    with_agents(Yard(), agents, address=Address(token=TOKEN))


# --- several workers


def is_held(worker) -> bool:
    return bool(worker._gateway._gate.gauges["holding"])


def test_whichever_worker_is_asked_all_of_them_hold_and_release(tmp_path):
    async def body():
        async with pair(tmp_path) as found:
            taken = [await found.take(url) for url in found.urls]
            for here, there in ((0, 1), (1, 0)):
                status, told = await post(found.http, f"{found.urls[here]}/hold", {"seconds": 60})
                assert (status, told["workers"]) == (200, 2)
                assert all(is_held(worker) for worker in found.workers)
                status, told = await post(found.http, f"{found.urls[there]}/release")
                assert (status, told) == (200, {"held": False, "workers": 2})
                assert not any(is_held(worker) for worker in found.workers)
            for one in taken:
                await complete(found.http, one)

    asyncio.run(body())


def test_orders_that_are_given_at_once_leave_all_workers_in_one_state(tmp_path):
    async def body():
        async with pair(tmp_path) as found:
            taken = [await found.take(url) for url in found.urls]
            for _ in range(25):
                first, second = found.urls
                await asyncio.gather(
                    post(found.http, f"{first}/hold", {"seconds": 60}),
                    post(found.http, f"{second}/release"),
                    post(found.http, f"{second}/hold", {"seconds": 50}),
                    post(found.http, f"{first}/release"),
                )
                one, other = map(is_held, found.workers)
                assert one == other
            await post(found.http, f"{first}/release")
            for one in taken:
                await complete(found.http, one)

    asyncio.run(body())


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(replies=REPLIES) as engine:
        yield engine


@pytest.fixture
def outpost(tmp_path, engine):
    engine.reset()
    found = Outpost(tmp_path, engine, "--workers", 2, "--concurrency", 4)
    yield found
    found.close()


def metrics(outpost: Outpost) -> str:
    with urllib.request.urlopen(f"{outpost.url}/metrics", timeout=20) as answer:
        return answer.read().decode()


def holding(outpost: Outpost) -> list[str]:
    """What each worker that is there says."""
    try:
        found = re.findall(
            r'^holdfast_gateway_holding\{worker="\d"\} (\d)$', metrics(outpost), re.MULTILINE
        )
    except (OSError, urllib.error.URLError):
        return []
    return found


def test_a_worker_that_is_started_again_is_held_as_the_others_are(outpost, engine):
    outpost.start()
    until(lambda: holding(outpost) == ["0", "0"])
    assert posted(f"{outpost.url}/hold", {"seconds": 600})["workers"] == 2
    agents = [Agent(outpost), Agent(outpost)]
    for agent in agents:
        agent.start()
    for pid in outpost.workers:
        os.kill(pid, signal.SIGKILL)
        until(partial(are_held_without, outpost, pid))
    assert not engine.requests()
    posted(f"{outpost.url}/release", {})
    assert work(outpost, *agents) == 0, outpost.said


def are_held_without(outpost: Outpost, killed: int) -> bool:
    return killed not in outpost.workers and holding(outpost) == ["1", "1"]


def test_a_gateway_that_is_started_again_is_not_held(outpost):
    outpost.start()
    until(lambda: holding(outpost) == ["0", "0"])
    posted(f"{outpost.url}/hold", {"seconds": 600})
    outpost.signal(signal.SIGKILL)
    assert outpost.ended() == SIGKILLED
    outpost.start()
    until(lambda: holding(outpost) == ["0", "0"])
    assert work(outpost, Agent(outpost), Agent(outpost)) == 0, outpost.said


def test_a_held_gateway_ends_all_the_same_when_it_is_told_to(outpost, engine):
    outpost.start("--grace", 2, "--drain", 1)
    until(lambda: holding(outpost) == ["0", "0"])
    posted(f"{outpost.url}/hold", {"seconds": 600})
    agent = Agent(outpost)
    agent.start()
    until(lambda: agent.taken)
    outpost.signal(signal.SIGTERM)
    assert outpost.ended() == 143, outpost.said
    agent.halt()
