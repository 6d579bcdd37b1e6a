"""An environment behind HTTP is the environment itself, seen from elsewhere."""

import asyncio

import pytest

from holdfast import ToolSaysNo
from holdfast.environments.http.environment import EnvironmentEndpoint, HttpEnvironment, LostSession
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.step import Contract
from holdfast.rollout.episodes.environment import Observation, Recovery
from support.environments.http_servers import opened, serving
from support.environments.http_worlds import AsyncLedger, KeptLedger, Ledger


def test_it_answers_as_the_environment_itself_does():
    async def scenario(server):
        environment = HttpEnvironment(server.url)
        first = await environment.reset(seed=7)
        seen = await environment.step("add 5")
        await environment.close()
        return first, seen, server.sessions

    bare = Ledger(None)
    expected = Observation(bare.reset(seed=7)), bare.step("add 5"), 0
    assert serving(scenario) == expected


@pytest.mark.parametrize(("amount", "over"), [(2000, "done"), (-2000, "truncated")])
def test_how_an_episode_ended_is_told(amount, over):
    async def scenario(server):
        async with opened(server.url) as environment:
            return await environment.step(f"add {amount}")

    seen = serving(scenario)
    assert (seen.done, seen.truncated) == (over == "done", over == "truncated")


def test_saying_no_is_no_failure_and_changes_nothing():
    async def scenario(server):
        async with opened(server.url) as environment:
            with pytest.raises(ToolSaysNo, match="not this"):
                await environment.step("no this")
            return await environment.step("add 1")

    assert serving(scenario).text == "total 1"


def test_its_tools_are_those_of_the_environment():
    async def scenario(server):
        endpoint = await EnvironmentEndpoint.describe(server.url)
        environment = endpoint.environment()
        await environment.reset(seed=1)
        add, keyed = environment.tools
        try:
            first = await add.invoke(add.bind('{"amount": 2}'))
            with pytest.raises(ToolSaysNo, match="more than 100"):
                await add.invoke(add.bind('{"amount": 200}'))
            with pytest.raises(ToolSaysNo, match="amount"):
                await add.invoke({"amount": "many"})
            second = await add.invoke(add.bind('{"amount": 200, "limit": 300}'))
            third = await keyed.invoke({"amount": 3, "idempotency_key": "k"})
            return environment, (first, second, third)
        finally:
            await environment.close()

    environment, message = serving(scenario)
    assert message == ("total 3", "total 203", "3 k")
    bare = Ledger(None)
    add, keyed = environment.tools
    assert environment.name == "Ledger"
    assert add.schema["function"]["description"] == "Adds an amount."
    assert add.schema["function"]["parameters"]["required"] == ["amount"]
    assert (add.contract, keyed.contract) == (Contract.AT_MOST_ONCE, Contract.IDEMPOTENT)
    assert (add.wants_key, keyed.wants_key) == (False, True)
    assert [tool.name for tool in environment.tools] == [bare.add.__name__, bare.keyed.__name__]


def test_a_snapshot_brings_it_back_in_another_session():
    async def scenario(server):
        first = HttpEnvironment(server.url, recovery="snapshot")
        await first.reset(seed=1)
        await first.step("add 4")
        state = await first.snapshot()
        await first.step("add 100")
        await first.close()
        second = HttpEnvironment(server.url, recovery="snapshot")
        await second.restore(state)
        seen = await second.step("add 1")
        await second.close()
        return state, seen

    state, seen = serving(scenario, KeptLedger)
    assert (state, seen.text) == (b"\xff5", "total 6")


def test_the_task_reaches_the_environment(tmp_path):
    log = tmp_path / "log"

    async def scenario(server):
        async with opened(server.url, seed=3, task={"log": str(log)}) as environment:
            await environment.step("add 1")

    serving(scenario)
    assert log.read_text().split("\n")[:3] == ["reset 3", "step add 1", "close"]


def test_many_at_once_do_not_meet():
    async def episode_texts(url, seed):
        async with opened(url, seed=seed) as environment:
            return [(await environment.step(f"add {n}")).text for n in range(3)]

    async def scenario(server):
        return await asyncio.gather(*(episode_texts(server.url, 100 * n) for n in range(10)))

    expected = [[f"total {100 * n + add}" for add in (0, 1, 3)] for n in range(10)]
    assert serving(scenario) == expected


def test_ten_megabytes_come_through_whole():
    async def scenario(server):
        async with opened(server.url) as environment:
            return (await environment.step("big 5000000")).text

    assert serving(scenario) == "ü" * 5_000_000


def test_text_that_is_no_unicode_and_info_come_through():
    async def scenario(server):
        async with opened(server.url) as environment:
            return await environment.step("surrogate")

    seen = serving(scenario)
    assert (seen.text, seen.info) == ("a\\udc80b", {"n": [1, "x"]})


def test_resetting_begins_a_new_session_and_ends_the_old_one():
    async def scenario(server):
        async with opened(server.url, seed=1) as environment:
            await environment.step("add 5")
            again = await environment.reset(seed=2)
            return again.text, (await environment.step("add 1")).text, server.sessions

    assert serving(scenario) == ("total 2", "total 3", 1)


def test_the_level_is_what_the_server_says():
    async def scenario(server):
        endpoint = await EnvironmentEndpoint.describe(server.url)
        with pytest.raises(UsageError, match="comes back by 'snapshot': say recovery='snapshot'"):
            async with opened(server.url):
                pass
        async with opened(server.url, recovery="replay") as weaker:
            assert weaker.recovery is Recovery.REPLAY
        return endpoint.environment().recovery, server.sessions

    assert serving(scenario, KeptLedger) == (Recovery.SNAPSHOT, 0)


def test_snapshots_are_not_promised_where_there_are_none():
    async def scenario(server):
        endpoint = await EnvironmentEndpoint.describe(server.url)
        with pytest.raises(UsageError, match="Ledger has no snapshots"):
            endpoint.environment(recovery="snapshot")
        async with opened(server.url, recovery="snapshot") as environment:
            with pytest.raises(UsageError, match="has no snapshots"):
                await environment.snapshot()

    serving(scenario)


def test_the_identity_is_the_task_and_not_the_address():
    environment = HttpEnvironment("http://127.0.0.1:1", task={"b": 1, "a": 2})
    assert (
        environment.identity
        == HttpEnvironment("http://127.0.0.1:2", task={"a": 2, "b": 1}).identity
    )
    assert environment.identity != HttpEnvironment("http://127.0.0.1:1", task={"a": 3}).identity


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://x:0", "http://", "http://[x"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError, match="looks like http"):
        HttpEnvironment(url)


def test_a_password_in_the_address_is_refused_and_not_shown():
    with pytest.raises(UsageError) as refused:
        HttpEnvironment("http://me:hunter2@127.0.0.1:80")
    assert "hunter2" not in str(refused.value)


def test_a_task_that_is_no_json_is_refused():
    with pytest.raises(UsageError, match="`task` is JSON"):
        HttpEnvironment("http://127.0.0.1:1", task=object())


def test_an_expired_session_is_a_broken_environment():
    async def scenario(server):
        async with opened(server.url) as environment:
            while server.sessions:
                await asyncio.sleep(0.01)
            with pytest.raises(LostSession, match="idle for too long"):
                await environment.step("add 1")
            with pytest.raises(EnvironmentBroken, match="earlier call"):
                await environment.step("add 1")

    serving(scenario, idle=0.05)


def test_a_session_in_use_does_not_expire():
    async def scenario(server):
        async with opened(server.url) as environment:
            await environment.step("sleep 2.5")
            return (await environment.step("add 1")).text

    assert serving(scenario, idle=2.0) == "total 1"


def test_an_async_environment_is_served_on_the_loop_and_its_step_can_be_stopped():
    made = []

    def make(task):
        made.append(AsyncLedger(task))
        return made[-1]

    async def scenario(server):
        async with opened(server.url) as environment:
            assert (await environment.step("0")).text == "slept 0"
            made[-1].timeout = 0.1
            with pytest.raises(EnvironmentBroken, match=r"step was not done within 0\.1 s"):
                await environment.step("60")
        return server.sessions

    assert serving(scenario, make) == 0
    _, environment = made
    assert (environment.cancelled, environment.closed) == (True, 1)
