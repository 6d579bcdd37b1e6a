"""Replicas that go away, come back, lie, or come back with other weights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from holdfast.policy.client import circuit_breaker
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion
from holdfast.records.errors import (
    BadAnswer,
    EndpointDown,
    EngineUnavailable,
    PolicyRefused,
    UsageError,
    WaitTimedOut,
)
from holdfast.records.samples.replica_weights import WeightState
from holdfast.records.step import VersionSource, VersionSpan
from holdfast.testing import FakeEngine
from support.policy.answers import PATHS, models, plain, request
from support.policy.canned_server import Answer, Canned, ReceivedRequest
from support.policy.clients import QUICK, ids, policy_at, run, until
from support.policy.recorded import newest_record, record_weights

COMPLETIONS = PATHS[Kind.VLLM]
LIE = Answer(body={"model": "m", "choices": []})


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.005)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.02)
    monkeypatch.setattr(circuit_breaker, "COOL_BASE_SECONDS", 0.1)


class Two:
    """Two replicas; `first` is the one that calls of family "f" go to."""

    def __init__(self, policy: EnginePolicy, first: Endpoint, servers: dict[str, Canned]):
        self.policy = policy
        self.first = first
        self.other = next(endpoint for endpoint in policy.endpoints if endpoint is not first)
        self.first_server = servers[first.url]
        self.other_server = servers[self.other.url]

    async def sample(self, name: str = "r", **more: Any) -> Completion:
        return await self.policy.sample(request(name, family="f", **more))

    async def sample_all(self, count: int = 12) -> list[Completion]:
        calls = (self.sample(str(at), home=str(at)) for at in range(count))
        return await asyncio.gather(*calls)

    def call_counts(self) -> tuple[int, int]:
        first, other = self.first_server, self.other_server
        return len(first.bodies(COMPLETIONS)), len(other.bodies(COMPLETIONS))


@asynccontextmanager
async def two(**more: Any) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Canned()) for _ in range(2)]
        for server in servers:
            server.always("/v1/models", models()).always(COMPLETIONS, plain(Kind.VLLM, [5]))
        policy = await stack.enter_async_context(policy_at(*servers, **more))
        first = await policy.choose(request(family="f"))
        yield Two(policy, first, {server.url: server for server in servers})


# --- away and back


async def test_a_dead_replica_costs_no_call() -> None:
    async with two() as pair:
        await pair.first_server.stop()
        assert [ids(completion) for completion in await pair.sample_all()] == [[5]] * 12
        await until(lambda: not pair.first.breaker.is_passing)
        assert (await pair.sample()).tries == 1, "it is left out"
        assert pair.policy.seconds_down == 0, "the policy as a whole was never down"


async def test_a_dead_replica_is_back_after_its_probe() -> None:
    async with two() as pair:
        await pair.first_server.stop()
        await pair.sample_all()
        await until(lambda: pair.first.breaker.outages == 1)
        before, _ = pair.call_counts()
        await pair.first_server.start()
        await until(lambda: pair.first.breaker.is_passing)
        await pair.sample()
        assert pair.call_counts()[0] == before + 1


async def test_a_replica_that_no_longer_serves_the_model_is_not_back() -> None:
    async with two() as pair:
        pair.first_server.always("/v1/models", models("another"))
        pair.first.breaker.trip()
        await until(lambda: pair.first.breaker.outages == 1)
        await asyncio.sleep(0.05)
        assert not pair.first.breaker.is_passing
        pair.first_server.always("/v1/models", models())
        await until(lambda: pair.first.breaker.is_passing)


# --- versions


@pytest.mark.parametrize(
    ("kind", "path"), [(Kind.VLLM, "/weight_info"), (Kind.SGLANG, "/get_model_info")]
)
async def test_weights_are_wanted_where_a_replica_is_back_with_others_than_were_recorded(
    kind: Kind, path: str
) -> None:
    async with two(kind=kind) as pair:
        pair.first_server.always(path, Answer(body={"weight_version": "v2"}))
        await record_weights(pair.policy, "v2")
        pair.first_server.always(path, Answer(body={"weight_version": "v1"}))
        pair.first.breaker.trip()
        await until(lambda: pair.first.breaker.is_passing)
        record = await newest_record(pair.policy, pair.first.url)
        assert (record.state, record.why) == (
            WeightState.WANTED,
            "it came back with weights 'v1'",
        )
        assert pair.policy.gate is not None
        assert await pair.policy.gate.wait(pair.policy.endpoints) == [pair.other]


async def test_a_replica_that_does_not_tell_its_weights_is_taken_at_its_word() -> None:
    async with two() as pair:
        await record_weights(pair.policy, "v2")
        pair.first.breaker.trip()
        await until(lambda: pair.first.breaker.is_passing)
        assert pair.first.breaker.outages == 0


async def test_what_was_acknowledged_is_the_version_of_what_is_sampled_then() -> None:
    async with two() as pair:
        assert (await pair.sample()).versions == (VersionSpan("", 0, 1, VersionSource.UNKNOWN),)
        await record_weights(pair.policy, "v2")
        assert (await pair.sample()).versions == (VersionSpan("v2", 0, 1, VersionSource.ASSUMED),)


async def test_of_an_answer_in_one_piece_across_an_update_nobody_knows_the_version() -> None:
    async with two() as pair:
        updated = asyncio.Event()
        answer = plain(Kind.VLLM, [5])
        answer.before = updated.wait
        pair.first_server.says(COMPLETIONS, answer)
        await record_weights(pair.policy, "v1")
        call = asyncio.create_task(pair.sample())
        await until(lambda: pair.call_counts()[0] == 1)
        await record_weights(pair.policy, "v2")
        updated.set()
        assert (await call).versions == (VersionSpan("", 0, 1, VersionSource.UNKNOWN),)


# --- liars


async def test_a_liar_is_left_out_after_three_bad_answers_while_another_works() -> None:
    async with two() as pair:
        pair.first_server.always(COMPLETIONS, LIE)
        for at in range(3):
            assert pair.first.breaker.is_passing
            completion = await pair.sample(str(at), home=str(at))
            assert (ids(completion), completion.tries) == ([5], 2)
        assert not pair.first.breaker.is_passing
        assert (await pair.sample()).tries == 1
        assert pair.call_counts()[0] == 3
        pair.first_server.always(COMPLETIONS, plain(Kind.VLLM, [6]))
        await until(lambda: pair.first.breaker.is_passing)
        assert ids(await pair.sample()) == [6], "it gets another chance"
        assert pair.policy.seconds_down == 0


async def test_a_lone_liar_is_not_left_out_and_each_call_fails_by_itself() -> None:
    async with Canned() as server, policy_at(server) as policy:
        server.always("/v1/models", models()).always(COMPLETIONS, LIE)
        for _ in range(2):
            with pytest.raises(BadAnswer, match="0 choices"):
                await policy.sample(request())
        assert policy.endpoints[0].breaker.is_passing
        assert len(server.bodies(COMPLETIONS)) == 2 * QUICK.tries


# --- all of them


async def test_with_all_down_calls_wait_until_one_is_back() -> None:
    async with two() as pair:
        await pair.first_server.stop()
        await pair.other_server.stop()
        calls = asyncio.create_task(pair.sample_all(4))
        await until(lambda: pair.policy.seconds_down > 0.05)
        assert not calls.done()
        await pair.other_server.start()
        assert [ids(call) for call in await calls] == [[5]] * 4
        await until(lambda: pair.other.breaker.is_passing)
        down = pair.policy.seconds_down
        await asyncio.sleep(0.05)
        assert pair.policy.seconds_down == down, "one is enough"
        await pair.policy.ready()


async def test_failures_before_an_outage_do_not_count_after_it() -> None:
    """Each side of the outage has one failure less than a call may have."""
    broken, away = Answer(status=500), asyncio.Event()
    async with Canned() as server:
        server.always("/v1/models", models()).says(COMPLETIONS, broken, broken)
        server.says(COMPLETIONS, Answer(before=away.wait))
        async with policy_at(server) as policy:
            call = asyncio.create_task(policy.sample(request()))
            await until(lambda: len(server.bodies(COMPLETIONS)) == 3)
            await server.stop()
            await until(lambda: policy.seconds_down > 0)
            server.says(COMPLETIONS, broken, broken, plain(Kind.VLLM, [5]))
            await server.start()
            completion = await call
            assert (ids(completion), completion.tries) == ([5], 6)


def test_a_call_that_brings_its_engine_down_each_time_fails_at_last() -> None:
    """An outage is the endpoint's failure: this one comes with each of the call's tries."""
    tries = 2

    def answer(body: ReceivedRequest) -> Answer:
        is_probe = body.body["max_tokens"] == 1
        return plain(Kind.VLLM, [5]) if is_probe else Answer(status=503)

    async def main() -> list[Any]:
        async with Canned() as server:
            server.always("/v1/models", models()).always(COMPLETIONS, answer)
            for _ in range(tries + 1):  # Each outage: one probe fails, and the next one succeeds.
                server.says("/v1/models", Answer(status=503), models())
            retry = structs.replace(QUICK, tries=tries)
            async with policy_at(server, retry=retry) as policy:
                with pytest.raises(EngineUnavailable, match="503"):
                    await policy.sample(request())
                assert policy.endpoints[0].breaker.outages == tries + 1
            return [body for body in server.bodies(COMPLETIONS) if body["max_tokens"] > 1]

    assert len(run(main())) == tries * (tries + 1)


async def test_patience_with_all_of_them_ends_every_call() -> None:
    async with two(patience=0.1) as pair:
        await pair.first_server.stop()
        await pair.other_server.stop()
        calls = (pair.sample(str(at)) for at in range(3))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [WaitTimedOut] * 3
        with pytest.raises(EndpointDown, match="start it again"):
            await pair.policy.ready()


async def test_one_that_is_given_up_for_good_is_asked_no_more_while_the_other_goes_on() -> None:
    async with two(patience=0.05) as pair:
        await pair.first_server.stop()
        await pair.sample_all()
        await until(lambda: pair.first.breaker.is_abandoned)
        await pair.first_server.start()
        before, _ = pair.call_counts()
        for completion in await pair.sample_all():
            assert completion.tries == 1
        assert pair.call_counts()[0] == before
        await pair.policy.ready()


async def test_an_outage_of_the_last_one_is_downtime_when_the_other_was_given_up() -> None:
    async with two(patience=0.3) as pair:
        pair.other.breaker._patience = 600.0
        await pair.first_server.stop()
        pair.first.breaker.trip()
        await until(lambda: pair.first.breaker.is_abandoned)
        assert pair.policy.seconds_down == 0
        await pair.other_server.stop()
        call = asyncio.create_task(pair.sample())
        await until(lambda: pair.policy.seconds_down > 0.02)
        await pair.other_server.start()
        assert ids(await call) == [5]


# --- before the work


async def test_check_takes_the_replicas_that_are_up_and_leaves_the_others_for_later() -> None:
    async with two() as pair:
        pair.other_server.always("/v1/models", models(max_model_len=99))
        await pair.first_server.stop()
        await pair.policy.check()
        assert not pair.first.breaker.is_passing
        assert pair.first.described.max_model_len == 99, "until it says otherwise"
        assert ids(await pair.sample()) == [5]
        await pair.first_server.start()
        await until(lambda: pair.first.breaker.is_passing)


async def test_check_says_that_nobody_is_there_when_nobody_is() -> None:
    async with two() as pair:
        await pair.first_server.stop()
        await pair.other_server.stop()
        with pytest.raises(EndpointDown, match="does not answer"):
            await pair.policy.check()


async def test_check_refuses_replicas_that_serve_another_model_or_speak_without_tokens() -> None:
    async with two(kind=None) as pair:
        pair.other_server.always("/v1/models", models(owned_by="someone"))
        pair.other_server.always(COMPLETIONS, Answer(404))
        with pytest.raises(UsageError, match=r"replicas differ: chat, vllm; name one"):
            await pair.policy.check()
        pair.other_server.always("/v1/models", models("another"))
        with pytest.raises(PolicyRefused, match="it serves: another"):
            await pair.policy.check()


def test_a_replica_that_was_down_at_the_start_is_found_out_about_when_it_is_up() -> None:
    with FakeEngine(max_model_len=500) as up, FakeEngine(max_model_len=700) as late:
        late.kill()

        async def meet() -> tuple[int | None, int | None]:
            policy = EnginePolicy([up.url, late.url], up.model, retry=QUICK)
            try:
                await policy.check()
                assert not policy.endpoints[1].breaker.is_passing
                await asyncio.to_thread(late.start)
                await until(lambda: policy.endpoints[1].breaker.is_passing)
                first, two = (endpoint.described.max_model_len for endpoint in policy.endpoints)
                return first, two
            finally:
                await policy.aclose()

        assert asyncio.run(meet()) == (500, 700)
