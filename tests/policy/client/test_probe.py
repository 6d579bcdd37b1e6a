"""The client against an engine that goes away and comes back, over a real socket."""

import asyncio

import aiohttp
import pytest

from holdfast.policy.client import circuit_breaker
from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.client.probe import find_sampling_fault
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind, one_try
from holdfast.policy.policy import Completion
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    EndpointDown,
    EngineUnavailable,
)
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.policy.fake_engines import QUICK, breaker_of, request, sample, sample_now, until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.01)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.05)


def test_a_call_waits_for_an_engine_that_was_killed_and_goes_on_when_it_is_back() -> None:
    async def main(engine: FakeEngine) -> Completion:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
        call = asyncio.create_task(sample(policy))
        await until(lambda: engine.stats().in_flight == 1)
        engine.kill()
        await until(lambda: breaker_of(policy).outages == 1)
        assert not call.done()
        assert policy.seconds_down > 0
        await asyncio.to_thread(engine.start)
        return await call

    with FakeEngine(delay=0.2) as engine:
        clean = sample_now(engine)
        assert asyncio.run(main(engine)).ids == clean.ids


def test_a_call_without_retries_still_waits_through_an_outage() -> None:
    async def main(engine: FakeEngine) -> Completion:
        policy = EnginePolicy(engine.url, engine.model, retry=RetryPolicy(tries=1))
        call = asyncio.create_task(sample(policy))
        await until(lambda: breaker_of(policy).outages == 1)
        await asyncio.to_thread(engine.start)
        return await call

    with FakeEngine() as engine:
        engine.kill()
        assert asyncio.run(main(engine)).tries == 2


def test_an_outage_does_not_count_against_a_calls_deadline() -> None:
    async def main(engine: FakeEngine) -> Completion:
        retry = RetryPolicy(tries=3, deadline=2.0, base=0.001)
        policy = EnginePolicy(engine.url, engine.model, retry=retry)
        call = asyncio.create_task(sample(policy))
        await until(lambda: policy.seconds_down > 2.0)
        await asyncio.to_thread(engine.start)
        return await call

    with FakeEngine() as engine:
        engine.kill()
        assert asyncio.run(main(engine)).finish_reason in ("stop", "length")


def test_an_outage_longer_than_patience_ends_all_calls() -> None:
    async def main(engine: FakeEngine) -> list[Completion | BaseException]:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK, patience=0.3)
        calls = [policy.sample(request(name)) for name in "abc"]
        results = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(EndpointDown):
            await policy.ready()
        await policy.aclose()
        return results

    with FakeEngine() as engine:
        engine.kill()
        for error in asyncio.run(main(engine)):
            assert isinstance(error, EndpointDown)
            assert not error.retryable
            assert "start it again" in str(error)


def test_a_call_that_brings_the_engine_down_every_time_is_given_up() -> None:
    async def main(engine: FakeEngine) -> None:
        policy = EnginePolicy(engine.url, engine.model, retry=RetryPolicy(tries=1))
        call = asyncio.create_task(sample(policy))
        for outages in (1, 2):
            await until(lambda: engine.stats().in_flight == 1)
            engine.kill()
            await until(lambda outages=outages: breaker_of(policy).outages == outages)  # type: ignore[misc]
            await asyncio.to_thread(engine.start)
        with pytest.raises(EngineUnavailable, match="lost"):
            await call

    with FakeEngine(faults=[Fault(FaultKind.HANG, matching="r", times=0)]) as engine:
        asyncio.run(main(engine))


async def test_a_probe_does_not_queue_behind_calls_that_hold_all_connections(
    engine: FakeEngine,
) -> None:
    engine.set_faults(Fault(FaultKind.HANG, times=0))
    policy = EnginePolicy(engine.url, engine.model, retry=QUICK, connections=1)
    call = asyncio.create_task(sample(policy))
    await until(lambda: engine.stats().in_flight == 1)
    breaker_of(policy).trip()
    await policy.ready()
    assert breaker_of(policy).outages == 0
    call.cancel()
    await asyncio.wait({call})


async def test_a_machine_that_takes_no_connection_is_an_outage(engine: FakeEngine) -> None:
    class Unreachable:
        def post(self, *_: object, **__: object) -> object:
            raise aiohttp.ConnectionTimeoutError

    async def unreachable() -> Unreachable:
        return Unreachable()

    policy = EnginePolicy(engine.url, engine.model, retry=RetryPolicy(tries=1))
    endpoint, body = policy.endpoints[0], request()
    ask = one_try(body, engine.model, max_tokens=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(endpoint._sessions, "get", unreachable)
        with pytest.raises(EngineUnavailable, match="took no connection") as caught:
            await endpoint.answer(ask, CompletionBuilder(body), before=lambda: None)
    assert not caught.value.reached
    assert (await sample(policy)).tries == 1


async def test_a_cancelled_call_ends_on_both_sides(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HANG, times=0))
    call = asyncio.create_task(sample(EnginePolicy(engine.url, engine.model)))
    await until(lambda: engine.stats().in_flight == 1)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    await until(lambda: engine.stats().in_flight == 0)


@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.SGLANG])
def test_an_engine_that_says_it_is_well_and_samples_nothing_is_down(kind: Kind) -> None:
    async def main(engine: FakeEngine) -> None:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK, patience=0.5, dialect=kind)
        await policy.check()
        path = policy.endpoints[0].dialect.path
        engine.set_faults(Fault(FaultKind.UNAVAILABLE, times=0, path=path))
        calls = [asyncio.create_task(policy.sample(request())) for _ in range(20)]
        done, _ = await asyncio.wait(calls)
        errors = [call.exception() for call in done]
        await policy.aclose()
        # The first ones may have spent their tries before anyone knew.
        assert sum(isinstance(error, EndpointDown) for error in errors) > 10
        assert "answered 503" in str(next(e for e in errors if isinstance(e, EndpointDown)))

    with FakeEngine(dialect="sglang" if kind is Kind.SGLANG else "vllm") as engine:
        asyncio.run(main(engine))


def test_a_request_that_is_refused_every_time_takes_nobody_elses_engine_away() -> None:
    async def main(engine: FakeEngine) -> list[object]:
        engine.set_faults(Fault(FaultKind.UNAVAILABLE, times=0, matching="poison"))
        policy = EnginePolicy(engine.url, engine.model, retry=RetryPolicy(tries=12, base=0.001))
        names = ["poison", *map(str, range(8))]
        results = await asyncio.gather(
            *(policy.sample(request(name)) for name in names), return_exceptions=True
        )
        await policy.aclose()
        return list(results)

    with FakeEngine() as engine:
        poisoned, *others = asyncio.run(main(engine))
    assert isinstance(poisoned, EngineUnavailable)
    assert all(isinstance(item, Completion) for item in others)


def test_an_engine_that_wants_to_be_asked_less_often_is_not_down() -> None:
    async def main(engine: FakeEngine) -> None:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
        await policy.check()
        engine.set_faults(Fault(FaultKind.RATE_LIMIT, times=0, path="completions"))
        endpoint = policy.endpoints[0]
        assert await find_sampling_fault(endpoint.send, endpoint.dialect, endpoint.model) is None
        engine.set_faults(Fault(FaultKind.ERROR_500, times=0, path="completions"))
        why = await find_sampling_fault(endpoint.send, endpoint.dialect, endpoint.model)
        assert "answered 500" in str(why)
        await policy.aclose()

    with FakeEngine() as engine:
        asyncio.run(main(engine))
