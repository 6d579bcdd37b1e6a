"""Which replica gets which call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import MAX_LOAD_RATIO, EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.records.errors import EndpointDown, HoldfastError, UsageError
from holdfast.testing import FakeEngine
from support.policy.answers import PATHS, models, plain, request
from support.policy.canned_server import Answer, Canned, forever
from support.policy.clients import ids, policy_at, run, until

COMPLETIONS = PATHS[Kind.VLLM]


@asynccontextmanager
async def replicas(count: int, **more: Any) -> AsyncIterator[tuple[EnginePolicy, list[Canned]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Canned()) for _ in range(count)]
        for server in servers:
            server.always("/v1/models", models()).always(COMPLETIONS, plain(Kind.VLLM, [5]))
        yield await stack.enter_async_context(policy_at(*servers, **more)), servers


def call_counts(servers: list[Canned]) -> list[int]:
    return [len(server.bodies(COMPLETIONS)) for server in servers]


# --- affinity


async def test_one_home_stays_with_one_replica() -> None:
    async with replicas(4) as (policy, servers):
        for turn in range(12):
            await policy.sample(request(f"h/{turn}", home="h", family=f"f{turn}"))
        assert sorted(call_counts(servers)) == [0, 0, 0, 12]


async def test_one_family_begins_at_one_replica_and_many_at_all() -> None:
    async with replicas(4) as (policy, servers):
        for sample in range(8):
            await policy.sample(request(home=f"h{sample}", family="f"))
        assert sorted(call_counts(servers)) == [0, 0, 0, 8]
        for family in range(200):
            await policy.sample(request(home=f"g{family}", family=f"g{family}"))
        assert min(call_counts(servers)) >= 20


def test_a_family_finds_the_same_replica_in_another_process() -> None:
    urls = [f"http://127.0.0.1:{port}" for port in range(1001, 1009)]

    async def chosen(order: list[str]) -> list[str]:
        policy = EnginePolicy(order, "m")
        urls = [(await policy.choose(request(family=f"f{at}"))).url for at in range(20)]
        await policy.aclose()
        return urls

    first, second = run(chosen(urls)), run(chosen(urls[::-1]))
    assert first == second
    assert len(set(first)) > 1


async def test_calls_at_once_spread_under_the_bound() -> None:
    async with replicas(4) as (policy, servers):
        for server in servers:
            server.always(COMPLETIONS, Answer(before=forever))
        calls = [
            asyncio.create_task(policy.sample(request(str(at), home=str(at), family="f")))
            for at in range(40)
        ]
        await until(lambda: sum(call_counts(servers)) == 40)
        running = [endpoint.running for endpoint in policy.endpoints]
        assert sum(running) == 40
        assert max(running) <= MAX_LOAD_RATIO * 41 / 4 + 1
        assert min(running) > 0
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert [endpoint.running for endpoint in policy.endpoints] == [0] * 4


async def test_a_home_moves_when_its_replica_is_overloaded_and_stays_where_it_went() -> None:
    async with replicas(2) as (policy, _):
        home = await policy.choose(request(home="h"))
        home.running = 3
        other = await policy.choose(request(home="h"))
        assert other is not home
        home.running = 0
        assert await policy.choose(request(home="h")) is other


async def test_a_request_without_a_home_is_not_remembered() -> None:
    async with replicas(2) as (policy, _):
        first = await policy.choose(request(family="f"))
        first.running = 3
        assert await policy.choose(request(family="f")) is not first
        first.running = 0
        assert await policy.choose(request(family="f")) is first


async def test_a_try_that_failed_goes_elsewhere() -> None:
    async with replicas(2) as (policy, servers):
        first = await policy.choose(request(home="h"))
        at = policy.endpoints.index(first)
        servers[at].always(COMPLETIONS, Answer(500, {"error": {"message": "broken"}}))
        completion = await policy.sample(request(home="h"))
        assert (ids(completion), completion.tries) == ([5], 2)
        assert call_counts(servers) == [1, 1]
        assert (await policy.sample(request(home="h"))).tries == 1, "it has moved"


# --- draining


async def test_a_drained_replica_gets_nothing_until_it_is_admitted() -> None:
    async with replicas(2) as (policy, servers):
        home = await policy.choose(request(home="h"))
        assert await policy.drain(home.url + "/v1/", timeout=0)
        for _ in range(5):
            await policy.sample(request(home="h"))
        drained = policy.endpoints.index(home)
        assert call_counts(servers)[drained] == 0
        assert call_counts(servers)[1 - drained] == 5
        policy.admit(home.url)
        used = [(await policy.choose(request(family=str(at)))).url for at in range(50)]
        assert home.url in used


async def test_draining_waits_for_what_runs_and_says_when_it_does_not_end() -> None:
    async with replicas(2) as (policy, servers):
        finish = asyncio.Event()
        for server in servers:
            server.always(COMPLETIONS, _when(finish))
        call = asyncio.create_task(policy.sample(request()))
        await until(lambda: sum(call_counts(servers)) == 1)
        busy = next(endpoint for endpoint in policy.endpoints if endpoint.running)
        assert not await policy.drain(busy.url, timeout=0.05)
        waiting = asyncio.create_task(policy.drain(busy.url, timeout=30))
        finish.set()
        assert await waiting
        assert ids(await call) == [5]


def _when(finish: asyncio.Event) -> Answer:
    answer = plain(Kind.VLLM, [5])
    answer.before = finish.wait
    return answer


@pytest.mark.parametrize("count", [1, 2])
async def test_with_every_replica_drained_calls_wait(count: int) -> None:
    async with replicas(count) as (policy, servers):
        for endpoint in policy.endpoints:
            assert await policy.drain(endpoint.url, timeout=0)
        call = asyncio.create_task(policy.sample(request()))
        await asyncio.sleep(0.1)
        assert sum(call_counts(servers)) == 0
        policy.admit(policy.endpoints[0].url)
        assert ids(await call) == [5]


def test_only_a_replica_can_be_drained() -> None:
    policy = EnginePolicy(["http://127.0.0.1:1", "http://127.0.0.1:2"], "m")
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:3 is not a replica .*:1, .*:2"):
        policy.admit("http://127.0.0.1:3")


# --- what is refused before any work


@pytest.mark.parametrize(
    ("urls", "more", "says"),
    [
        ([], {}, "at least one address"),
        (["http://a:1", "http://a:1/v1/"], {}, "same address twice"),
        ("http://a:1", {"dialect": "klingon"}, "no dialect 'klingon'; there are: vllm, "),
        ("a:1", {}, "looks like http://127.0.0.1:8000, not 'a:1'; is 'http://a:1' meant?"),
        (["http://a:1", "ftp://b"], {}, "looks like http://"),
    ],
)
def test_nonsense_is_refused(urls: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        EnginePolicy(urls, "m", **more)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_dialect_is_named_by_its_word(kind: Kind) -> None:
    policy = EnginePolicy(["http://a:1", "http://b:1"], "m", dialect=kind.value)
    assert {endpoint.dialect.kind for endpoint in policy.endpoints} == {kind}
    assert policy.has_tokens == (kind is not Kind.CHAT)


# --- the end


async def test_closing_closes_every_client_even_if_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []
    close = Endpoint.aclose

    async def fails_for_one(endpoint: Endpoint) -> None:
        await close(endpoint)
        closed.append(endpoint.url)
        if len(closed) == 1:
            raise HoldfastError("cannot be closed")

    async with replicas(3) as (policy, _):
        for at in range(30):
            await policy.sample(request(family=str(at)))
        monkeypatch.setattr(Endpoint, "aclose", fails_for_one)
        with pytest.raises(HoldfastError, match="cannot be closed"):
            await policy.aclose()
        monkeypatch.undo()
        assert sorted(closed) == sorted(endpoint.url for endpoint in policy.endpoints)


# --- one policy, several event loops


def test_a_policy_serves_one_loop_after_another(engine: FakeEngine) -> None:
    policy = EnginePolicy([engine.url], engine.model)

    async def use() -> int:
        await policy.check()
        await policy.ready()
        return len(ids(await policy.sample(request())))

    assert [run(use()) > 0 for _ in range(3)] == [True] * 3
    run(policy.aclose())


def test_what_a_loop_left_behind_keeps_no_later_one_waiting(engine: FakeEngine) -> None:
    """An outage and a hold that were under way when the loop ended are not there in the next."""
    policy = EnginePolicy([engine.url], engine.model)

    async def leave() -> None:
        await policy.check()
        policy.endpoints[0].breaker.trip(after=1000)
        policy.holds.hold(1000)
        waits = [asyncio.create_task(wait()) for wait in (policy.ready, policy.available)]
        await asyncio.wait(waits, timeout=0.01)

    async def use() -> None:
        await policy.check()
        async with asyncio.timeout(10):
            await policy.sample(request())
        assert policy.endpoints[0].running == 0
        await policy.aclose()

    run(leave())
    run(use())


async def test_a_loop_that_is_still_at_work_keeps_its_policy(engine: FakeEngine) -> None:
    policy = EnginePolicy([engine.url], engine.model)
    await policy.check()
    hold = policy.holds.hold(1000)
    call = asyncio.create_task(policy.sample(request()))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="another event loop"):
        await asyncio.to_thread(run, policy.check())
    hold.end()
    await call
    await policy.aclose()


async def test_a_closed_policy_says_that_it_is_closed(engine: FakeEngine) -> None:
    async with EnginePolicy([engine.url], engine.model) as policy:
        await policy.check()
    with pytest.raises(UsageError, match="closed"):
        await policy.check()


async def test_an_outage_that_outlasted_patience_is_no_reason_against_new_work() -> None:
    async with replicas(1, patience=0.0) as (policy, (server,)):
        await policy.check()
        server.always("/v1/models", Answer(503))
        policy.endpoints[0].breaker.trip()
        with pytest.raises(EndpointDown):
            await policy.ready()
        server.always("/v1/models", models())
        await policy.check()
        await policy.sample(request())
