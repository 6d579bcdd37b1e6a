"""A processor's own gateway: what can be said of it without making one."""

import asyncio

import aiohttp
import pytest

from holdfast.gateway.address import Address
from holdfast.gateway.agents.remote import RemoteRolloutProcessor
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.gateway.limits import GatewayLimits
from holdfast.records.errors import UsageError
from support.engine.local_run import LocalRun
from support.gateway.agent_service import AgentService
from support.gateway.counter import HELLO
from support.gateway.external_agents import post

TOKEN = "a-token-of-some-length"


def test_a_processor_holds_the_calls_of_its_agents():
    local, asking = LocalRun(), asyncio.Event()

    async def agent(binding, task):
        async with aiohttp.ClientSession() as http:
            asking.set()
            status, reply = await post(http, f"{binding.bound_url}/v1/chat/completions", HELLO)
            assert status == 200, reply

    solve = BlackBoxRolloutProcessor(agent)

    async def switched():
        await asking.wait()
        await asyncio.sleep(0.1)
        return len(local.policy.requests)

    async def body():
        for hold in (solve.hold, solve.held):
            with pytest.raises(UsageError, match="while a run goes on"):
                hold(60)
        work = asyncio.create_task(local.work(solve))
        while solve._gateway is None:
            await asyncio.sleep(0)
        async with solve.held(600):
            hold = solve.hold(600)
            assert await switched() == 0
        assert await switched() == 0
        hold.end()
        await asyncio.wait_for(work, 30)
        with pytest.raises(UsageError, match="while a run goes on"):
            solve.hold(60)

    asyncio.run(body())
    assert len(local.policy.requests) == 1
    assert local.history().status.name == "COMPLETED"


def test_too_large_a_request_is_refused_by_a_processors_limits():
    messages = []

    async def agent(binding, task):
        async with aiohttp.ClientSession() as http:
            messages.append(await post(http, f"{binding.bound_url}/v1/chat/completions", HELLO))
            messages.append(await post(http, f"{binding.bound_url}/complete", {"reward": 1}))

    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(agent, limits=GatewayLimits(body=len(str(HELLO)) // 2)))
    assert [status for status, _ in messages] == [413, 200]
    (failure,) = local.history().failures
    assert "a body holds at most" in failure.line


def test_a_service_elsewhere_is_told_of_the_address_that_is_given():
    async def body():
        async with AgentService() as service:
            at = Address(token=TOKEN, advertise="gateway.example")
            solve = RemoteRolloutProcessor(service.url, address=at)
            await solve.setup()
            try:
                url = solve._running.url
                assert url.startswith("http://gateway.example:")
                here = f"http://127.0.0.1:{url.rpartition(':')[2]}/metrics"
                async with aiohttp.ClientSession() as http:
                    for key, status in ((TOKEN, 200), ("x" * 20, 401)):
                        headers = {"Authorization": f"Bearer {key}"}
                        async with http.get(here, headers=headers) as answer:
                            assert answer.status == status
            finally:
                await solve.acleanup()

    asyncio.run(body())
    with pytest.raises(UsageError, match="give it a token"):
        asyncio.run(RemoteRolloutProcessor("http://h", address=Address(host="0.0.0.0")).setup())
